// Accesses whose caller vanishes at the worst moment: no lease stays behind.
#include "daemon/world/local_control.h"

#include <gtest/gtest.h>

#include "tests/daemon/catalog_fixture.h"
#include "tests/daemon/notification.h"

namespace agmm {
namespace {

class LocalControlTest : public CatalogTest {
 protected:
  LocalControlTest() {
    LocalControl::Parts parts;
    parts.loop = &loop_;
    parts.catalog = catalog_.get();
    parts.placement = &placement_;
    control_ = std::make_unique<LocalControl>(parts);
    tensor_ = MakeReady("A").tensor_id();
  }
  ~LocalControlTest() override { loop_.Stop(); }

  absl::StatusOr<v1::BeginAccessResponse> BeginWrite(
      const CallContext& ctx, const std::function<void()>& on_reply = [] {}) {
    v1::BeginAccessRequest request;
    request.set_tensor_id(tensor_);
    request.set_write(true);
    absl::StatusOr<v1::BeginAccessResponse> answer = absl::UnknownError("no answer");
    Notification answered;
    control_->BeginAccess(ctx, request, [&](Access access) {
      answer = std::move(access);
      on_reply();
      answered.Notify();
    });
    if (!answered.WaitFor(absl::Seconds(30)))
      return absl::DeadlineExceededError("no answer");
    return answer;
  }

  uint64_t tensor_ = 0;
  std::unique_ptr<LocalControl> control_;
  Loop loop_;  // runs on top of the above
};

TEST_F(LocalControlTest, AnAccessGrantedAsItsCallerGoesIsEnded) {
  CallContext ctx;
  ASSERT_TRUE(BeginWrite(ctx, [&] { ctx.cancel->Cancel(absl::CancelledError("gone")); }).ok());
  EXPECT_TRUE(BeginWrite({}).ok());
}

TEST_F(LocalControlTest, AnAccessWhoseAnswerDidNotArriveIsEnded) {
  CallContext ctx;
  ASSERT_TRUE(BeginWrite(ctx).ok());
  ctx.cancel->Cancel(absl::CancelledError("the answer could not be sent"));
  EXPECT_TRUE(BeginWrite({}).ok());
}

}  // namespace
}  // namespace agmm
