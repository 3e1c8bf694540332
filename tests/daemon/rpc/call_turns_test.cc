// The order of calls at the sequencer's loop.
#include "daemon/rpc/call_turns.h"

#include <string>
#include <vector>

#include "absl/time/clock.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/support/notification.h"
#include "tests/support/patience.h"

namespace agmm {
namespace {

using ::testing::ElementsAre;

class CallTurnsTest : public ::testing::Test {
 protected:
  ~CallTurnsTest() override { loop_.Stop(); }
  // Longer than the queue lets calls run before the loop's other work.
  static constexpr absl::Duration kSlow = absl::Milliseconds(5);

  void Call(const std::string& principal, const std::string& name) {
    turns_.Post(principal, [this, name] {
      absl::SleepFor(kSlow);
      ran_.push_back(name);
    });
  }

  Loop loop_{"the test"};
  CallTurns turns_{&loop_};
  std::vector<std::string> ran_;
};

TEST_F(CallTurnsTest, OwnersTakeTurnsAndTheLoopsOtherWorkComesBetweenThem) {
  Notification go, done;
  loop_.Post([&] { go.Wait(); });
  Call("ipv4:10.0.0.1:1", "a1");
  // Another connection of the same host.
  Call("ipv4:10.0.0.1:2", "a2");
  Call("ipv4:10.0.0.1:1", "a3");
  Call("uid:0", "b1");
  loop_.Post([this] { ran_.push_back("other"); });
  Call("uid:0", "b2");
  turns_.Post("ipv4:10.0.0.1:1", [&] { done.Notify(); });
  go.Notify();
  done.Wait();
  EXPECT_THAT(ran_, ElementsAre("a1", "other", "b1", "a2", "b2", "a3"));
}

TEST_F(CallTurnsTest, ACallMayPostCalls) {
  Notification done;
  turns_.Post("uid:0", [&] {
    Call("uid:0", "second");
    turns_.Post("uid:0", [&] { done.Notify(); });
    ran_.push_back("first");
  });
  done.Wait();
  EXPECT_THAT(ran_, ElementsAre("first", "second"));
}

}  // namespace
}  // namespace agmm
