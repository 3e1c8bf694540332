// Times on the wire.
#pragma once

#include "absl/time/time.h"
#include "google/protobuf/duration.pb.h"
#include "google/protobuf/timestamp.pb.h"

namespace agmm {

// Timeout of a SubmitJobRequest without one.
inline constexpr absl::Duration kDefaultJobTimeout = absl::Seconds(60);

inline google::protobuf::Timestamp ToProto(absl::Time time) {
  google::protobuf::Timestamp timestamp;
  const int64_t seconds = absl::ToUnixSeconds(time);  // rounded down
  timestamp.set_seconds(seconds);
  timestamp.set_nanos(
      static_cast<int32_t>((time - absl::FromUnixSeconds(seconds)) / absl::Nanoseconds(1)));
  return timestamp;
}

inline google::protobuf::Duration ToProto(absl::Duration duration) {
  google::protobuf::Duration proto;
  proto.set_seconds(absl::ToInt64Seconds(duration));  // towards zero: the rest has the same sign
  proto.set_nanos(static_cast<int32_t>(absl::ToInt64Nanoseconds(duration % absl::Seconds(1))));
  return proto;
}

inline absl::Time FromProto(const google::protobuf::Timestamp& time) {
  return absl::FromUnixSeconds(time.seconds()) + absl::Nanoseconds(time.nanos());
}

inline absl::Duration FromProto(const google::protobuf::Duration& duration) {
  return absl::Seconds(duration.seconds()) + absl::Nanoseconds(duration.nanos());
}

}  // namespace agmm
