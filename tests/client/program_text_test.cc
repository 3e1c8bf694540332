// The name of a program in a list of sessions.
#include "client/connect/program_text.h"

#include <unistd.h>

#include <fstream>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "kernels/base/utf8.h"
#include "proto/limits.h"

namespace agmm {
namespace {

using ::testing::HasSubstr;
using ::testing::StartsWith;

std::string Of(absl::string_view name) { return absl::StrCat(name, " (pid ", getpid(), " on "); }

TEST(ProgramText, HasTheProcessAndTheHost) {
  char host[256] = {};
  ASSERT_EQ(gethostname(host, sizeof(host) - 1), 0);
  EXPECT_EQ(ProgramText("train"), absl::StrCat(Of("train"), std::string(host).substr(0, 46), ")"));
}

TEST(ProgramText, WithoutANameIsThatOfTheExecutable) {
  EXPECT_THAT(ProgramText(), StartsWith(Of("client_test")));
}

TEST(ProgramText, IsShortReadableTextWhateverItIsGiven) {
  const std::string names[] = {"\xff\xfe",     "a\nb",
                               "\x1b[2J",      std::string("a\0b", 3),
                               "\xe2\x80\xae", std::string(1000, 'x'),
                               "\xe7\x9f",     std::string(63, 'x') + "\xe7\x9f\xa9"};
  for (const std::string& name : names) {
    const std::string text = ProgramText(name);
    EXPECT_LE(text.size(), kMaxProgramBytes) << text;
    EXPECT_EQ(Printable(text), text);
    EXPECT_THAT(text, HasSubstr(" (pid "));
  }
  EXPECT_THAT(ProgramText("\xff\xfe"), StartsWith("?? (pid "));
  EXPECT_THAT(ProgramText("a\nb"), StartsWith("a?b (pid "));
  EXPECT_THAT(ProgramText(std::string(1000, 'x')), StartsWith(Of(std::string(64, 'x'))));
  EXPECT_THAT(ProgramText(names[7]), StartsWith(Of(std::string(63, 'x')))) << "half a character";
}

TEST(ProgramName, IsCheckedAsADaemonDoes) {
  EXPECT_TRUE(CheckProgramName("").ok());
  EXPECT_TRUE(CheckProgramName("gr\xc3\xb6\xc3\x9f"
                               "e (x=1), #7")
                  .ok());
  EXPECT_TRUE(CheckProgramName(std::string(64, 'x')).ok());
  const auto refused = [](absl::string_view name, const std::string& why) {
    const absl::Status status = CheckProgramName(name);
    EXPECT_TRUE(absl::IsInvalidArgument(status)) << status;
    EXPECT_THAT(std::string(status.message()), HasSubstr(why));
  };
  refused(std::string(65, 'x'), "program has 65 bytes; at most 64 are taken");
  refused("ab\xff", "program is not UTF-8 from byte 2 on");
  refused("a\tb", "program has the control character U+0009 at byte 1");
  refused("\xe2\x81\xa6", "U+2066 at byte 0");
}

}  // namespace
}  // namespace agmm
