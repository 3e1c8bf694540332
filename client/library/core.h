// What a client and the handles of its jobs share: the connection, and the thread of the callbacks.
#pragma once

#include <condition_variable>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "agmm/v1/tensor.pb.h"
#include "client/agmm.h"
#include "client/connection.h"
#include "client/library/callback_loop.h"
#include "client/library/runs.h"

namespace agmm {

// Thread-safe.
class Core {
 public:
  Core(Endpoint endpoint, ClientOptions options);
  // Asks the daemon for a sign of life, and opens the session that the options want.
  absl::Status Open();
  // Fails what is in progress, waits for its callbacks, and lets the connection go. Once; not from
  // a callback.
  void Close();

  // What uses the connection, for as long as it does.
  bool Begin();  // false: closed
  void End();
  Connection* connection() { return &*connection_; }
  CallbackLoop* loop() { return &*loop_; }
  Runs* runs() { return runs_.get(); }

  const std::string& session() const { return session_; }
  absl::Duration CallTimeout(Milliseconds given) const;
  absl::Duration TransferTimeout(Milliseconds given) const;
  // The mesh of a TensorSpec or a JobRequest, all devices of the world where it says nothing.
  absl::StatusOr<v1::Mesh> MeshOf(const std::string& mesh, const std::vector<int>& ranks,
                                  absl::Duration timeout);

 private:
  absl::StatusOr<int> DeviceCount(absl::Duration timeout);

  const ClientOptions options_;
  std::optional<Connection> connection_;
  std::optional<CallbackLoop> loop_;
  const std::shared_ptr<Runs> runs_ = std::make_shared<Runs>(this);
  std::string session_;

  std::mutex mutex_;
  std::condition_variable unused_;
  bool closed_ = false;
  int uses_ = 0;
  int device_count_ = 0;  // 0: not yet known; the configuration of a world never changes
};

// A use that ends with its scope.
class CoreUse {
 public:
  explicit CoreUse(Core* core) : core_(core != nullptr && core->Begin() ? core : nullptr) {}
  ~CoreUse() {
    if (core_ != nullptr) core_->End();
  }
  CoreUse(const CoreUse&) = delete;
  bool ok() const { return core_ != nullptr; }

 private:
  Core* const core_;
};

// Of a call on a client that is being destroyed.
Status ClientGone();

// A duration of the public header; zero means `otherwise`.
absl::Duration ToTimeout(Milliseconds given, Milliseconds otherwise);

}  // namespace agmm
