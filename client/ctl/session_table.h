// The memory of the devices by its users: sessions, and owners of tensors without a session. Pure.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/time/time.h"
#include "agmm/v1/cluster.pb.h"
#include "agmm/v1/tensor.pb.h"

namespace agmm {

// The tensors of an owner that end with no session.
struct PermanentTensors {
  std::string owner;  // without the port of its connection
  int count = 0;
  int64_t bytes = 0;  // on all ranks together
};
// One for each owner, by its name.
std::vector<PermanentTensors> PermanentByOwner(const v1::ListTensorsResponse& list);

// A row for each session and for each owner of permanent tensors, the largest first; or a line if
// there are none. `now`: the time of the ages.
std::string SessionTable(const v1::ListSessionsResponse& sessions,
                         const std::vector<PermanentTensors>& permanent,
                         const v1::GetStatusResponse& status, absl::Time now);

}  // namespace agmm
