#include "daemon/transport/address.h"

#include <cstdint>
#include <cstring>

#include "absl/status/status.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "kernels/base/hash.h"

namespace agmm::transport {
namespace {

constexpr absl::string_view kMark = "agmmucx2";

void Append(absl::string_view field, std::string* to) {
  absl::StrAppend(to, absl::string_view(std::string(1, static_cast<char>(field.size()))), field);
}

// Takes a field that Append has written. Returns false without a field.
bool Take(absl::string_view* from, absl::string_view* field) {
  if (from->empty()) return false;
  const size_t size = static_cast<unsigned char>(from->front());
  if (from->size() <= size) return false;
  *field = from->substr(1, size);
  from->remove_prefix(1 + size);
  return true;
}

}  // namespace

std::string Frame(const TransportAddress& address) {
  const SocketAddress& socket = address.listener.socket;
  std::string fields;
  Append(absl::string_view(reinterpret_cast<const char*>(&socket.bytes), socket.size), &fields);
  Append(address.listener.salt, &fields);
  absl::StrAppend(&fields, address.worker);
  const uint64_t hash = Fnv1a(fields);
  return absl::StrCat(kMark, absl::string_view(reinterpret_cast<const char*>(&hash), sizeof(hash)),
                      fields);
}

absl::StatusOr<TransportAddress> Unframe(absl::string_view framed) {
  uint64_t hash = 0;
  const size_t head = kMark.size() + sizeof(hash);
  if (framed.size() > head && absl::StartsWith(framed, kMark)) {
    std::memcpy(&hash, framed.data() + kMark.size(), sizeof(hash));
    absl::string_view fields = framed.substr(head), socket, salt;
    if (Fnv1a(fields) == hash && Take(&fields, &socket) && Take(&fields, &salt) &&
        socket.size() <= sizeof(sockaddr_storage) && !fields.empty()) {
      TransportAddress address;
      std::memcpy(&address.listener.socket.bytes, socket.data(), socket.size());
      address.listener.socket.size = static_cast<socklen_t>(socket.size());
      address.listener.salt = std::string(salt);
      address.worker = std::string(fields);
      return address;
    }
  }
  return absl::InvalidArgumentError(absl::StrFormat(
      "%d bytes are not a transport address; pass the result of the peer's address() unchanged",
      framed.size()));
}

}  // namespace agmm::transport
