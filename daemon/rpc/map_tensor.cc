#include <memory>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_format.h"
#include "daemon/link/stream.h"
#include "daemon/rpc/services.h"
#include "daemon/rpc/validate.h"
#include "kernels/base/status.h"

namespace agmm {
namespace {

// Takes the messages of one client, and sends the answers of its mapping, which decides when and
// how the call ends.
class MapTensorStream final : public BidiStream<v1::MapTensorRequest, v1::MapTensorResponse> {
 public:
  MapTensorStream(Mappings* mappings, grpc::CallbackServerContext* context)
      : BidiStream(context),
        mappings_(mappings),
        local_(absl::StartsWith(context->peer(), "unix:")) {}

 private:
  void OnStart() override {
    ServedMapping::Client client;
    client.send = [self = Self<MapTensorStream>()](v1::MapTensorResponse response) {
      self->Send(std::move(response));
      // A commit, or the end; nothing follows the answer to a commit.
      if (!std::exchange(self->offered_, true)) self->Read();
    };
    client.end = [self = Self<MapTensorStream>()](absl::Status why) { self->End(std::move(why)); };
    absl::StatusOr<std::shared_ptr<ServedMapping>> mapping = mappings_->Create(std::move(client));
    if (!mapping.ok()) return End(mapping.status());
    mapping_ = *std::move(mapping);
    WatchSilence(mappings_->loop(), mappings_->silence());
    Read();
  }

  void OnMessage(v1::MapTensorRequest* request) override {
    if (absl::Status valid = Check(*request); !valid.ok()) return mapping_->End(std::move(valid));
    if (request->has_commit()) return mapping_->Commit();
    begun_ = true;
    mapping_->Begin(call_, request->begin());
  }
  void OnHalfClose() override {
    // The normal end of a mapping that has nothing to commit.
    mapping_->End(begun_
                      ? absl::OkStatus()
                      : absl::InvalidArgumentError("the mapping ended before its first message"));
  }
  void OnBroken(absl::Status why) override {
    if (mapping_ != nullptr) mapping_->End(std::move(why));
  }
  void OnSilence(absl::Duration limit) override {
    if (begun_) return;
    mapping_->End(absl::DeadlineExceededError(absl::StrFormat(
        "the client has not begun its mapping for %s", absl::FormatDuration(limit))));
  }

  absl::Status Check(const v1::MapTensorRequest& request) const {
    AGMM_RETURN_IF_ERROR(Validate(request));
    if (request.has_begin() && begun_)
      return absl::InvalidArgumentError("a message begins the mapping again");
    if (request.has_commit() && !begun_)
      return absl::InvalidArgumentError("the first message of a mapping does not begin it");
    if (request.has_commit() && !mapping_->writable()) {
      return absl::InvalidArgumentError(
          "a read-only mapping cannot be committed; begin a writable one");
    }
    if (request.has_begin() && !local_) {
      return absl::FailedPreconditionError(
          "only clients on the same host can map shards; connect over the daemon's unix socket");
    }
    return absl::OkStatus();
  }

  Mappings* const mappings_;
  const bool local_;
  std::shared_ptr<ServedMapping> mapping_;  // from OnStart on; null if it was refused
  std::atomic<bool> begun_ = false;
  bool offered_ = false;
};

}  // namespace

grpc::ServerBidiReactor<Parsed<v1::MapTensorRequest>, v1::MapTensorResponse>* StartMapTensor(
    Mappings* mappings, grpc::CallbackServerContext* context) {
  return StartStream<MapTensorStream>(mappings, context);
}

}  // namespace agmm
