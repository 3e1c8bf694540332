#include "client/ctl/table.h"

#include "client/ctl/exit_code.h"
#include "gtest/gtest.h"

namespace agmm {
namespace {

TEST(Table, AlignsNumbersRightAndTextLeftUnderTheirUnits) {
  Table table({{"rank"}, {"node", "", Column::kText}, {"sent", "MiB"}});
  table.AddRow({"0", "a", "12.50"});
  table.AddRow({"10", "bigger", "3.00"});
  EXPECT_EQ(table.ToString(),
            "rank  node     sent\n"
            "                MiB\n"
            "   0  a       12.50\n"
            "  10  bigger   3.00\n");
}

TEST(Table, HasNoUnitsRowWithoutUnitsAndNoBlanksAtLineEnds) {
  Table table({{"a"}, {"b", "", Column::kText}});
  table.AddRow({"1", "long text"});
  table.AddRow({"2"});
  EXPECT_EQ(table.ToString(), "a  b\n1  long text\n2\n");
}

TEST(Table, ShortensLongTextsOnlyWhereItIsTooWide) {
  Table table(
      {{"long", "", Column::kLong}, {"other", "", Column::kLong}, {"text", "", Column::kText}});
  table.AddRow({std::string(40, 'a'), std::string(20, 'b'), std::string(36, 'c')});
  EXPECT_EQ(table.ToString().find(".."), std::string::npos) << "100 columns";
  table.AddRow({"", "", std::string(60, 'd')});
  const std::string text = table.ToString();
  EXPECT_NE(text.find(std::string(16, 'a') + "..  " + std::string(16, 'b') + "..  c"),
            std::string::npos)
      << text;
  table.AddRow({"", "", std::string(200, 'e')});
  EXPECT_NE(table.ToString().find("aaaaaa..  bbbbbb..  c"), std::string::npos) << table.ToString();
}

TEST(ExitCode, TellsTheDocumentedCasesApart) {
  EXPECT_EQ(ExitCode(absl::StatusCode::kOk), 0);
  EXPECT_EQ(ExitCode(absl::StatusCode::kInvalidArgument), 2);
  EXPECT_EQ(ExitCode(absl::StatusCode::kUnavailable), 3);
  EXPECT_EQ(ExitCode(absl::StatusCode::kNotFound), 4);
  EXPECT_EQ(ExitCode(absl::StatusCode::kFailedPrecondition), 5);
  EXPECT_EQ(ExitCode(absl::StatusCode::kUnimplemented), 5);
  EXPECT_EQ(ExitCode(absl::StatusCode::kDeadlineExceeded), 6);
  EXPECT_EQ(ExitCode(absl::StatusCode::kAborted), 7);
  EXPECT_EQ(ExitCode(absl::StatusCode::kDataLoss), 7);
  EXPECT_EQ(ExitCode(absl::StatusCode::kResourceExhausted), 8);
  EXPECT_EQ(ExitCode(absl::StatusCode::kCancelled), 130);
}

}  // namespace
}  // namespace agmm
