// The open sessions, and what would end with them.
#include "daemon/sequencer/sessions.h"

#include "absl/strings/str_cat.h"
#include "daemon/link/protocol.h"
#include "gmock/gmock.h"
#include "proto/limits.h"
#include "tests/daemon/sequencer/scheduler_harness.h"

namespace agmm {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

class SessionsTest : public SchedulerTest {
 protected:
  absl::Status Open(const std::string& id, int node = 0, const std::string& program = "") {
    CallContext ctx;
    ctx.principal = absl::StrCat("uid:", 100 + node);
    v1::OpenedSessionRequest request;
    request.set_session_id(id);
    request.set_node(node);
    request.set_program(program);
    absl::Status opened;
    Do([&] { opened = sessions_.Open(ctx, request); });
    return opened;
  }
  void Close(const std::string& id) {
    v1::CloseSessionRequest request;
    request.set_session_id(id);
    Do([&] { EXPECT_TRUE(sessions_.Close(request).ok()); });
  }
  v1::ListSessionsResponse Page(int size = 0, uint64_t after = 0) {
    v1::ListSessionsRequest request;
    request.set_page_size(size);
    request.set_after_number(after);
    v1::ListSessionsResponse page;
    Do([&] { page = sessions_.List(request); });
    return page;
  }
  static std::vector<std::string> Ids(const v1::ListSessionsResponse& page) {
    std::vector<std::string> ids;
    for (const v1::Session& session : page.sessions()) ids.push_back(session.session_id());
    return ids;
  }
  v1::Session Only() {
    const v1::ListSessionsResponse page = Page();
    EXPECT_EQ(page.sessions_size(), 1);
    return page.sessions_size() == 1 ? page.sessions(0) : v1::Session();
  }
  // Makes a tensor that ends with the session: 16 KiB on each of two ranks.
  uint64_t CreateIn(const std::string& session) {
    Answer<v1::Tensor> created;
    v1::CreateTensorRequest request = TensorRequest("", "[M_x, K]", 128, 64, MeshOf(2));
    request.set_session_id(session);
    Do([&] { catalog_->CreateTensor({}, request, created.reply()); });
    for (const auto& [node, command] : Take(v1::Command::kPlaceTensor))
      Report(node, PlacedReport(command.place_tensor().tensor().tensor_id()));
    return created.Get()->tensor_id();
  }
  void Delete(uint64_t tensor) {
    v1::DeleteTensorRequest request;
    request.set_tensor_id(tensor);
    Do([&] {
      catalog_->DeleteTensor({}, request, [](const auto& end) { EXPECT_TRUE(end.ok()); });
    });
  }

  Sessions sessions_{2, catalog_.get(), scheduler_.get(), &clock_};
};

TEST_F(SessionsTest, AreListedWithTheirOwnerProgramNodeAndTime) {
  const int64_t now_us = absl::ToUnixMicros(clock_.Now());
  ASSERT_TRUE(Open("s0").ok());
  Advance(absl::Seconds(3));
  ASSERT_TRUE(Open("s1", 1, "train.py (pid 7 on host1)").ok());
  const v1::ListSessionsResponse page = Page();
  EXPECT_THAT(Ids(page), ElementsAre("s0", "s1"));
  EXPECT_EQ(page.next_after_number(), 0u);
  EXPECT_EQ(page.sessions(0).number(), 1u);
  EXPECT_EQ(page.sessions(0).program(), "");
  EXPECT_EQ(page.sessions(0).opened_unix_us(), now_us);
  const v1::Session& last = page.sessions(1);
  EXPECT_EQ(last.number(), 2u);
  EXPECT_EQ(last.node(), 1);
  EXPECT_EQ(last.owner(), "uid:101");
  EXPECT_EQ(last.program(), "train.py (pid 7 on host1)");
  EXPECT_EQ(last.opened_unix_us(), now_us + 3'000'000);
  EXPECT_EQ(last.tensor_count() + last.tensor_bytes() + last.job_count(), 0);
}

TEST_F(SessionsTest, TheBytesOfTheirTensorsAreThoseOfAllRanks) {
  ASSERT_TRUE(Open("s0").ok());
  ASSERT_TRUE(Open("other").ok());
  CreateIn("");
  CreateIn("s0");
  CreateIn("s0");
  const v1::ListSessionsResponse page = Page();
  EXPECT_EQ(page.sessions(0).tensor_count(), 2);
  EXPECT_EQ(page.sessions(0).tensor_bytes(), 2 * 128 * 64 * 4);
  EXPECT_EQ(page.sessions(1).tensor_count(), 0);
}

TEST_F(SessionsTest, ADeletedTensorCountsUntilItsMemoryIsFree) {
  ASSERT_TRUE(Open("s0").ok());
  const uint64_t tensor = CreateIn("s0");
  const uint64_t lease = BeginWrite(tensor);
  Delete(tensor);
  EXPECT_EQ(Only().tensor_bytes(), 128 * 64 * 4);
  Do([&] {
    v1::EndLeaseRequest request;
    request.set_lease_id(lease);
    catalog_->EndLease({}, request, [](const auto&) {});
  });
  EXPECT_EQ(Only().tensor_count(), 0);
  EXPECT_EQ(Only().tensor_bytes(), 0);
}

TEST_F(SessionsTest, ATensorThatIsBeingPutCounts) {
  ASSERT_TRUE(Open("s0").ok());
  Answer<v1::BeginLeaseResponse> begun;
  v1::BeginLeaseRequest put;
  *put.mutable_put() = TensorRequest("W", "[M_x, K]", 128, 64, MeshOf(2));
  put.mutable_put()->set_session_id("s0");
  Do([&] { catalog_->BeginLease({}, put, begun.reply()); });
  EXPECT_EQ(Only().tensor_count(), 1);
  EXPECT_EQ(Only().tensor_bytes(), 128 * 64 * 4);
}

TEST_F(SessionsTest, AJobCountsUntilItHasEnded) {
  ASSERT_TRUE(Open("s0").ok());
  ASSERT_TRUE(Open("other").ok());
  v1::SubmitJobRequest request = Request(MakeOperands());
  request.set_session_id("s0");
  const uint64_t first = SubmitOk(request), second = SubmitOk(request);
  request.clear_session_id();
  const uint64_t without = SubmitOk(request);
  EXPECT_EQ(Page().sessions(0).job_count(), 2);
  AnswerPrepared();
  DoneEverywhere(first);
  EXPECT_EQ(Page().sessions(0).job_count(), 1);
  DoneEverywhere(second);
  EXPECT_EQ(Page().sessions(0).job_count(), 0);
  EXPECT_EQ(Page().sessions(1).job_count(), 0);
  DoneEverywhere(without);
}

TEST_F(SessionsTest, AClosedSessionVanishes) {
  ASSERT_TRUE(Open("s0").ok());
  ASSERT_TRUE(Open("s1").ok());
  Close("s0");
  EXPECT_THAT(Ids(Page()), ElementsAre("s1"));
  ASSERT_TRUE(Open("s0").ok());
  EXPECT_THAT(Ids(Page()), ElementsAre("s1", "s0")) << "a number was used twice";
}

TEST_F(SessionsTest, TheSessionsOfALostNodeVanish) {
  ASSERT_TRUE(Open("a", 0).ok());
  ASSERT_TRUE(Open("b", 1).ok());
  ASSERT_TRUE(Open("c", 1).ok());
  CreateIn("b");
  Do([&] { sessions_.OnNodeLost(1); });
  EXPECT_THAT(Ids(Page()), ElementsAre("a"));
  Do([&] { sessions_.OnNodeLost(0); });
  EXPECT_THAT(Ids(Page()), IsEmpty());
}

TEST_F(SessionsTest, ARefusedSessionIsNotListed) {
  EXPECT_TRUE(absl::IsInvalidArgument(Open("s0", 2)));
  EXPECT_TRUE(absl::IsAlreadyExists(Open("")));
  ASSERT_TRUE(Open("s0").ok());
  EXPECT_TRUE(absl::IsAlreadyExists(Open("s0", 1, "another")));
  EXPECT_EQ(Only().node(), 0);
  EXPECT_EQ(Only().program(), "");
}

// Sessions end and open between the pages, at their borders, too.
TEST_F(SessionsTest, PagesHaveEachSessionThatStaysOnce) {
  for (int i = 0; i < 10; ++i) ASSERT_TRUE(Open(absl::StrCat("s", i)).ok());
  v1::ListSessionsResponse page = Page(4);
  EXPECT_THAT(Ids(page), ElementsAre("s0", "s1", "s2", "s3"));
  for (const char* id : {"s3", "s0", "s6"}) Close(id);
  page = Page(4, page.next_after_number());
  EXPECT_THAT(Ids(page), ElementsAre("s4", "s5", "s7", "s8"));
  Close("s9");
  ASSERT_TRUE(Open("s10").ok());
  page = Page(4, page.next_after_number());
  EXPECT_THAT(Ids(page), ElementsAre("s10"));
  EXPECT_EQ(page.next_after_number(), 0u);
}

TEST_F(SessionsTest, ALastPageThatIsFullHasNoNextOne) {
  for (const char* id : {"a", "b"}) ASSERT_TRUE(Open(id).ok());
  EXPECT_EQ(Page(2).next_after_number(), 0u);
  EXPECT_EQ(Page(1).next_after_number(), 1u);
  EXPECT_THAT(Ids(Page(2, 2)), IsEmpty());
  EXPECT_THAT(Ids(Page(2, UINT64_MAX)), IsEmpty());
}

TEST_F(SessionsTest, APageWithoutASizeHasAHundred) {
  for (int i = 0; i < kDefaultPage + 1; ++i) ASSERT_TRUE(Open(absl::StrCat("s", i)).ok());
  EXPECT_EQ(Page().sessions_size(), kDefaultPage);
  EXPECT_EQ(Page().next_after_number(), uint64_t{kDefaultPage});
}

TEST_F(SessionsTest, ThePageOfTheLongestTextsFitsAMessage) {
  Do([&] {
    CallContext ctx;
    ctx.principal = std::string(256, 'o');
    for (int i = 0; i < kMaxPage; ++i) {
      v1::OpenedSessionRequest request;
      request.set_session_id(absl::StrCat(std::string(250, 's'), i));
      request.set_program(std::string(kMaxProgramBytes, 'p'));
      ASSERT_TRUE(sessions_.Open(ctx, request).ok());
    }
  });
  const v1::ListSessionsResponse page = Page(kMaxPage);
  EXPECT_EQ(page.sessions_size(), kMaxPage);
  EXPECT_LT(page.ByteSizeLong(), size_t{kMaxMessageBytes} / 2);
}

}  // namespace
}  // namespace agmm
