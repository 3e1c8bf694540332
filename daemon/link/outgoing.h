// Answers whose memory is freed once they have been serialized. gRPC itself would keep the message,
// which may be seven times as large as its bytes, until the client has read the bytes.
#pragma once

#include <grpcpp/grpcpp.h>

namespace agmm {

// The type of a server's answers, in place of Message.
template <typename Message>
struct Outgoing {
  mutable Message message;  // empty once serialized
};

}  // namespace agmm

namespace grpc {

template <typename Message>
class SerializationTraits<agmm::Outgoing<Message>, void> {
 public:
  static Status Serialize(const agmm::Outgoing<Message>& outgoing, ByteBuffer* bytes,
                          bool* own_buffer) {
    Status status = SerializationTraits<Message>::Serialize(outgoing.message, bytes, own_buffer);
    outgoing.message = Message();  // Clear would keep memory
    return status;
  }
};

}  // namespace grpc
