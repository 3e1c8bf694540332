#include "proto/convert/grpc_call.h"

#include <string>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "proto/convert/rpc_status.h"

namespace agmm {
namespace {
constexpr size_t kMaxMessageBytes = 2048;
}  // namespace

grpc::Status ToGrpc(const absl::Status& status) {
  if (status.ok()) return grpc::Status::OK;
  google::rpc::Status details = ToProto(status);
  if (details.message().size() > kMaxMessageBytes)
    details.mutable_message()->resize(kMaxMessageBytes);
  return grpc::Status(static_cast<grpc::StatusCode>(details.code()), details.message(),
                      details.SerializeAsString());
}

std::optional<absl::Status> SentError(const grpc::Status& status) {
  google::rpc::Status details;
  if (status.ok() || status.error_details().empty() ||
      !details.ParseFromString(status.error_details()) ||
      details.code() != static_cast<int>(status.error_code())) {
    return std::nullopt;
  }
  return FromProto(details);
}

absl::Status FromGrpc(const grpc::Status& status) {
  if (status.ok()) return absl::OkStatus();
  if (std::optional<absl::Status> error = SentError(status)) return *std::move(error);
  return absl::Status(static_cast<absl::StatusCode>(status.error_code()), ExplainGrpc(status));
}

bool IsBare(const grpc::Status& status) {
  const std::string& message = status.error_message();
  const std::string code =
      absl::StatusCodeToString(static_cast<absl::StatusCode>(status.error_code()));
  // gRPC writes the names of codes in both of these ways.
  return message.empty() || absl::EqualsIgnoreCase(message, code) ||
         absl::EqualsIgnoreCase(absl::StrReplaceAll(message, {{" ", "_"}}), code);
}

std::string ExplainGrpc(const grpc::Status& status) {
  if (!IsBare(status)) return status.error_message();
  switch (status.error_code()) {
    case grpc::StatusCode::CANCELLED: return "the call was cancelled before its answer came";
    case grpc::StatusCode::DEADLINE_EXCEEDED: return "no answer came in time";
    case grpc::StatusCode::UNAVAILABLE: return "the connection broke before the answer came";
    case grpc::StatusCode::UNIMPLEMENTED:
      return "the method is not known there, or the request could not be read; install the same "
             "version everywhere";
    default:
      return absl::StrCat(
          "the call ended with ",
          absl::StatusCodeToString(static_cast<absl::StatusCode>(status.error_code())),
          " and no explanation");
  }
}

}  // namespace agmm
