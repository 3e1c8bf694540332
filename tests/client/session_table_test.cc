// The list of sessions as agmmctl prints it.
#include "client/ctl/session_table.h"

#include "client/ctl/json.h"
#include "client/ctl/table.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/client/messages_fixture.h"
#include "tests/golden/golden.h"
#include "tests/support/widest.h"

namespace agmm {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

constexpr int64_t kOpenedUs = 1700000000250000;

v1::ListSessionsResponse SomeSessions() {
  return FromText<v1::ListSessionsResponse>(R"pb(
    sessions {
      session_id: "00112233445566778899aabbccddeeff"
      number: 7
      node: 1
      owner: "uid:1000"
      program: "train.py (pid 4711 on host1)"
      opened_unix_us: 1700000000250000
      tensor_count: 3
      tensor_bytes: 1048576
      job_count: 2
    }
    sessions {
      session_id: "ff"
      number: 9
      owner: "ipv4:10.0.0.7:43210"
      opened_unix_us: 1700000000250000
      tensor_bytes: 4194304
    }
    next_after_number: 9
  )pb");
}

v1::ListTensorsResponse SomeTensors() {
  v1::ListTensorsResponse list;
  for (const char* owner : {"uid:7", "ipv4:10.0.0.7:1", "uid:7", "ipv4:10.0.0.7:2"}) {
    *list.add_tensors() = SomeTensor();
    list.mutable_tensors()->rbegin()->set_owner(owner);
  }
  *list.add_tensors() = SomeTensor();
  list.mutable_tensors()->rbegin()->set_session_id("ff");
  return list;
}

std::string TableAt(absl::Duration age) {
  return SessionTable(SomeSessions(), {}, SomeStatus(), absl::FromUnixMicros(kOpenedUs) + age);
}

TEST(SessionTable, TheLargestUserOfMemoryIsFirst) {
  const std::string table =
      SessionTable(SomeSessions(), PermanentByOwner(SomeTensors()), SomeStatus(),
                   absl::FromUnixMicros(kOpenedUs) + absl::Seconds(42));
  const size_t hosts = table.find("ipv4:10.0.0.7 "), users = table.find("uid:7 "),
               large = table.find("ipv4:10.0.0.7:43210 "), small = table.find("uid:1000 ");
  ASSERT_NE(small, table.npos) << table;
  EXPECT_LT(hosts, users) << table;
  EXPECT_LT(users, large) << table;
  EXPECT_LT(large, small) << table;
  EXPECT_THAT(table, HasSubstr("train.py (pid 4711 on host1)"));
  EXPECT_THAT(table, HasSubstr("(tensors without a session)"));
  EXPECT_THAT(table, Not(HasSubstr("00112233")));
}

TEST(SessionTable, NamesTheNodeAndRoundsTheAgeDown) {
  EXPECT_THAT(TableAt(absl::Seconds(59.9)), HasSubstr("  b     59 s "));
  EXPECT_THAT(TableAt(absl::Minutes(60) - absl::Seconds(1)), HasSubstr(" 59 min "));
  EXPECT_THAT(TableAt(absl::Hours(48) - absl::Seconds(1)), HasSubstr(" 47 h "));
  EXPECT_THAT(TableAt(absl::Hours(49)), HasSubstr(" 2 d "));
  EXPECT_THAT(TableAt(-absl::Hours(1)), HasSubstr(" 0 s ")) << "clocks differ";
}

TEST(SessionTable, PermanentTensorsAreSummedByOwner) {
  const std::vector<PermanentTensors> owners = PermanentByOwner(SomeTensors());
  ASSERT_EQ(owners.size(), 2u);
  EXPECT_EQ(owners[0].owner, "ipv4:10.0.0.7");
  EXPECT_EQ(owners[1].owner, "uid:7");
  for (const PermanentTensors& owner : owners) {
    EXPECT_EQ(owner.count, 2);
    EXPECT_EQ(owner.bytes, 2 * 4 * 1048576);
  }
}

TEST(SessionTable, FitsALineWithAnyTexts) {
  v1::ListSessionsResponse sessions = SomeSessions();
  v1::Session& session = *sessions.mutable_sessions(0);
  session.set_program(std::string(128, 'p'));
  session.set_owner("ipv6:%5B2001:db8:1234:5678:9abc:def0:1234:5678%5D:43210");
  session.set_number(123456789);
  session.set_tensor_bytes(int64_t{1} << 50);
  session.set_job_count(10'000);
  session.set_tensor_count(1'000'000);
  v1::GetStatusResponse status = SomeStatus();
  status.mutable_nodes(1)->set_name("worker-17.rack4.cluster.example.org");
  for (const int columns : {80, 100}) {
    FitLinesTo(columns);
    const std::string table = SessionTable(sessions, {}, status, absl::Now());
    EXPECT_LE(Widest(table), static_cast<size_t>(columns)) << table;
    EXPECT_THAT(table, HasSubstr("1073741824.0"));
  }
  FitLinesTo(100);
}

TEST(SessionTable, SaysThatItIsEmpty) {
  EXPECT_EQ(SessionTable({}, {}, SomeStatus(), absl::Now()), "no sessions and no tensors\n");
}

TEST(ToJson, OfSessionsHasTheOwnersOfOtherTensorsAndTheBytesByClass) {
  ExpectGolden(
      "json/session_list.json",
      ToJson(SomeSessions(), PermanentByOwner(SomeTensors()), SomeStatus()).dump(1) + "\n");
}

}  // namespace
}  // namespace agmm
