// Times on the wire.
#pragma once

#include "absl/time/time.h"
#include "google/protobuf/timestamp.pb.h"

namespace agmm {

inline google::protobuf::Timestamp ToTimestamp(absl::Time time) {
  google::protobuf::Timestamp timestamp;
  const int64_t seconds = absl::ToUnixSeconds(time);  // rounded down
  timestamp.set_seconds(seconds);
  timestamp.set_nanos(
      static_cast<int32_t>((time - absl::FromUnixSeconds(seconds)) / absl::Nanoseconds(1)));
  return timestamp;
}

}  // namespace agmm
