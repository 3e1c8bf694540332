#include "proto/channel/channel.h"

#include <grpcpp/generic/generic_stub.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <future>
#include <memory>
#include <set>
#include <utility>

namespace agmm {
namespace {

// Without the threads that the first channel keeps, each round would start and end its own threads,
// and one of these would have to end itself: a use after free.
TEST(Channel, TheLastChannelMayBeDroppedInACallback) {
  struct Call {
    std::shared_ptr<grpc::Channel> channel = OpenChannel("127.0.0.1:1");  // nothing listens there
    grpc::ClientContext context;
    const grpc::Slice nothing{""};
    grpc::ByteBuffer request{&nothing, 1}, response;
  };
  constexpr int kRounds = 200;
  std::set<pid_t> threads;  // threads that ran callbacks
  for (int round = 0; round < kRounds; ++round) {
    std::promise<grpc::Status> ended;
    std::promise<void> alone;
    auto call = std::make_shared<Call>();
    {
      grpc::GenericStub stub(call->channel);
      Call* const raw = call.get();
      stub.UnaryCall(&raw->context, "/agmm/None", {}, &raw->request, &raw->response,
                     [&, call = std::move(call)](const grpc::Status& status) mutable {
                       alone.get_future().wait();
                       call.reset();
                       threads.insert(gettid());
                       ended.set_value(status);
                     });
    }
    alone.set_value();
    EXPECT_EQ(ended.get_future().get().error_code(), grpc::StatusCode::UNAVAILABLE);
  }
  EXPECT_LT(threads.size(), kRounds / 4);
}

}  // namespace
}  // namespace agmm
