#include <algorithm>
#include <utility>
#include <vector>

#include "daemon/link/stream.h"
#include "daemon/rpc/services.h"

namespace agmm {
namespace {

class WatchJobStream final : public WriteStream<v1::WatchJobResponse> {
 public:
  WatchJobStream(const SequencerParts& parts, grpc::CallbackServerContext* context,
                 const v1::WatchJobRequest& request)
      : ServerStream(context), parts_(parts), request_(request) {}

 private:
  void OnStart() override {
    const absl::Status valid = Validate(request_);
    valid.ok() ? Poll() : End(valid);
  }

  void Poll() {
    OnLoop(parts_, parts_.scheduler, &Scheduler::PollJob)(
        call_, request_,
        [self = Self<WatchJobStream>()](auto polled) { self->OnPolled(std::move(polled)); });
  }

  // On the loop.
  void OnPolled(absl::StatusOr<std::vector<v1::WatchJobResponse>> polled) {
    if (!polled.ok()) return End(polled.status());
    const bool ended = polled->back().has_job();
    request_.set_after_event(std::max(request_.after_event(), polled->back().event().number()));
    for (v1::WatchJobResponse& response : *polled) Send(std::move(response));
    if (ended) return End(absl::OkStatus());
    if (open()) Poll();
  }

  const SequencerParts parts_;
  v1::WatchJobRequest request_;  // of the next poll
};

}  // namespace

grpc::ServerWriteReactor<v1::WatchJobResponse>* StartWatchJob(const SequencerParts& parts,
                                                              grpc::CallbackServerContext* context,
                                                              const v1::WatchJobRequest* request) {
  return StartStream<WatchJobStream>(parts, context, *request);
}

}  // namespace agmm
