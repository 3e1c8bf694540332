// A whole daemon: its devices, its node of the world, and its server. main.cc runs one; tests run
// several.
#pragma once

#include <functional>
#include <memory>

#include "absl/status/statusor.h"
#include "daemon/config/config.h"

namespace agmm {

class Daemon {
 public:
  // `on_refused` runs once, on any thread, if the sequencer refuses this daemon for good.
  // Errors: ALREADY_EXISTS when an address is in use; RESOURCE_EXHAUSTED when the heaps do not fit.
  static absl::StatusOr<std::unique_ptr<Daemon>> Start(
      const Config& config, std::function<void(absl::Status)> on_refused);
  // Ends the calls and the jobs, and leaves the world.
  virtual ~Daemon() = default;

  // Returns the bound TCP port, or 0 without TCP.
  virtual int port() const = 0;
};

}  // namespace agmm
