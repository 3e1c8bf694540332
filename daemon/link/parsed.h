// Requests that the server accepts even if parsing fails, so that it can return a clear error. gRPC
// itself answers such a request with UNIMPLEMENTED and no text, and treats such a message of a
// stream as the end of the stream.
#pragma once

#include <grpcpp/grpcpp.h>

#include <cstddef>

#include "absl/status/status.h"
#include "absl/strings/str_format.h"

namespace agmm {

// The type of a server's requests, in place of Message.
template <typename Message>
struct Parsed {
  // Unknown fields are dropped from requests larger than this, which could otherwise occupy up to 8
  // MiB for the duration of the call.
  static constexpr size_t kSmallBytes = 4 << 10;
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
    const bool large = bytes->Length() > agmm::Parsed<Message>::kSmallBytes;
    parsed->ok = SerializationTraits<Message>::Deserialize(bytes, &parsed->message).ok();
    if (large) parsed->message.DiscardUnknownFields();
    return Status::OK;
  }
};

}  // namespace grpc
