// The list of sessions through the public library.
#include <unistd.h>

#include <map>
#include <memory>

#include "absl/strings/str_cat.h"
#include "tests/client/library/library_fixture.h"

namespace agmm {
namespace {

using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::StartsWith;

class LibrarySession : public LibraryTest {
 protected:
  std::unique_ptr<Client> Named(const std::string& program) const {
    Result<std::unique_ptr<Client>> client =
        Client::Connect({.endpoint = world_.endpoint(0), .session = true, .program = program});
    EXPECT_TRUE(client.ok()) << client.status().ToString();
    return client.ok() ? *std::move(client) : nullptr;
  }
};

TEST_F(LibrarySession, IsListedWithWhatItHolds) {
  const WallTime begin = std::chrono::system_clock::now() - std::chrono::minutes(10);
  const auto first = Named("train"), second = Named("");
  PutAB(*first);
  const JobHandle job = Submit(*first, LongRequest());
  const auto list = first->Sessions();
  ASSERT_TRUE(list.ok()) << list.status().ToString();
  ASSERT_EQ(list->size(), 2u);
  const SessionInfo& own = list->front();
  EXPECT_TRUE(own.own);
  EXPECT_LT(own.number, list->back().number);
  EXPECT_THAT(own.program, StartsWith(absl::StrCat("train (pid ", getpid(), " on ")));
  EXPECT_THAT(own.owner, HasSubstr("127.0.0.1"));
  EXPECT_EQ(own.node, first->World()->devices.at(0).node);
  EXPECT_GT(own.open_time, begin);
  EXPECT_EQ(own.job_count, 1);
  // The job has made C, which is whole in its rows on both devices.
  EXPECT_EQ(own.tensor_count, 3);
  int64_t bytes = 0;
  const auto tensors = first->List();
  ASSERT_TRUE(tensors.ok());
  for (const TensorInfo& tensor : *tensors) bytes += 2 * tensor.shard_bytes;
  EXPECT_EQ(own.tensor_bytes, bytes);

  const SessionInfo& other = list->back();
  EXPECT_FALSE(other.own);
  EXPECT_THAT(other.program, StartsWith("client_library_test (pid "));
  EXPECT_EQ(other.tensor_count + other.tensor_bytes + other.job_count, 0);
  EXPECT_TRUE(second->Sessions()->back().own);
  EXPECT_TRUE(job.Cancel().ok());
}

TEST_F(LibrarySession, VanishesWithItsClient) {
  const auto observer = Connect();
  EXPECT_THAT(*observer->Sessions(), IsEmpty());
  auto client = Named("short");
  ASSERT_EQ(observer->Sessions()->size(), 1u);
  EXPECT_FALSE(observer->Sessions()->front().own);
  client.reset();
  EXPECT_TRUE(Eventually([&] { return observer->Sessions()->empty(); }));
}

TEST_F(LibrarySession, WithAWrongNameIsRefused) {
  const std::map<std::string, std::string> wrong = {
      {std::string(65, 'p'), "program has 65 bytes; at most 64 are taken"},
      {"a\nb", "program has the control character U+000A at byte 1"},
      {"\xff", "program is not UTF-8 from byte 0 on"}};
  for (const auto& [program, why] : wrong) {
    const auto client =
        Client::Connect({.endpoint = world_.endpoint(0), .session = true, .program = program});
    ASSERT_FALSE(client.ok());
    EXPECT_EQ(client.status().code(), StatusCode::kInvalidArgument);
    EXPECT_THAT(client.status().message(), HasSubstr(why));
  }
  EXPECT_THAT(*Connect()->Sessions(), IsEmpty());
}

TEST_F(LibrarySession, ListsFailLikeOtherCalls) {
  const auto client = Named("train");
  client->Close();
  EXPECT_EQ(client->Sessions().status().code(), StatusCode::kCancelled);
}

}  // namespace
}  // namespace agmm
