// Messages that a server takes also where they cannot be parsed, so that it can say so. gRPC itself
// answers such a request with UNIMPLEMENTED and no text, and takes such a message of a stream for
// the stream's end.
#pragma once

#include <grpcpp/grpcpp.h>

#include "absl/status/status.h"
#include "absl/strings/str_format.h"

namespace agmm {

// The type of a server's requests, in place of Message.
template <typename Message>
struct Parsed {
  Message message;
  bool ok = true;
};

template <typename Message>
absl::Status NotParsed() {
  return absl::InvalidArgumentError(
      absl::StrFormat("the daemon cannot read this message as %s; use a client of its version",
                      Message::descriptor()->full_name()));
}

}  // namespace agmm

namespace grpc {

template <typename Message>
class SerializationTraits<agmm::Parsed<Message>, void> {
 public:
  static Status Deserialize(ByteBuffer* bytes, agmm::Parsed<Message>* parsed) {
    parsed->ok = SerializationTraits<Message>::Deserialize(bytes, &parsed->message).ok();
    return Status::OK;
  }
};

}  // namespace grpc
