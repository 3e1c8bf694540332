#include "daemon/link/grpc_context.h"

#include <unistd.h>

#include <algorithm>
#include <string>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "kernels/base/random.h"
#include "proto/convert/grpc_call.h"

namespace agmm {
namespace {

constexpr size_t kMaxValueBytes = 256;

}  // namespace

std::string MetadataOf(const grpc::ServerContextBase& context, const char* key) {
  const auto it = context.client_metadata().find(key);
  if (it == context.client_metadata().end()) return "";
  std::string value(it->second.data(), std::min(it->second.size(), kMaxValueBytes));
  // gRPC ends the process if metadata is not allowed in HTTP.
  for (char& c : value)
    if (!absl::ascii_isprint(static_cast<unsigned char>(c))) c = '?';
  return value;
}

CallContext CallContextOf(const grpc::ServerContextBase* context) {
  CallContext call;
  const std::string peer = context->peer();
  if (absl::StartsWith(peer, "unix:")) {
    // The socket's mode admits only its owner and root.
    call.principal = absl::StrCat("uid:", geteuid());
  } else {
    call.principal = MetadataOf(*context, kPrincipalKey);
    if (call.principal.empty()) call.principal = peer;
  }
  const std::string member = MetadataOf(*context, kMemberKey);
  call.former_member = member == kFormerMember;
  call.member = !member.empty() && !call.former_member;
  call.request_id = MetadataOf(*context, kRequestIdKey);
  if (call.request_id.empty()) call.request_id = RandomHex(8);
  call.deadline = FromGrpc(context->raw_deadline());
  call.traceparent = MetadataOf(*context, kTraceparentKey);
  call.session = MetadataOf(*context, kSessionKey);
  call.sequencer = MetadataOf(*context, kSequencerKey);
  return call;
}

void SetCaller(const CallContext& from, grpc::ClientContext* to) {
  to->set_deadline(ToGrpc(from.deadline));
  const std::pair<const char*, const std::string&> metadata[] = {
      {kRequestIdKey, from.request_id},
      {kTraceparentKey, from.traceparent},
      {kSessionKey, from.session},
      {kSequencerKey, from.sequencer},
      {kPrincipalKey, from.principal}};
  for (const auto& [key, value] : metadata)
    if (!value.empty()) to->AddMetadata(key, value);
}

}  // namespace agmm
