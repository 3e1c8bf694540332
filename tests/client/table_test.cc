#include "client/ctl/table.h"

#include <locale.h>

#include <limits>

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

TEST(Table, ShortensLongTextsOnlyIfItIsTooWide) {
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
  EXPECT_NE(table.ToString().find("\n" + std::string(14, 'a') + "..  c"), std::string::npos)
      << "in a second table:\n"
      << table.ToString();
}

TEST(Table, ContinuesBelowIfItDoesNotFit) {
  FitLinesTo(60);
  Table table({{"id"}, {"a"}, {"b", "MiB"}, {"long", "", Column::kLong}, {"c"}});
  const std::string a(30, '1'), b(20, '2'), c(20, '3'), text(70, 'd');
  table.AddRow({"7", a, b, text, c}, "note");
  const auto right = [](int width, const std::string& text) {
    return std::string(width - text.size(), ' ') + text;
  };
  EXPECT_EQ(table.ToString(), "id  " + right(30, "a") + "  " + right(20, "b") + "\n" +
                                  right(56, "MiB") + "\n 7  " + a + "  " + b + "\n    note\n" +
                                  "\nid  long\n 7  " + std::string(54, 'd') + "..\n" + "\nid  " +
                                  right(20, "c") + "\n 7  " + c + "\n");
  FitLinesTo(std::numeric_limits<size_t>::max());
  EXPECT_NE(table.ToString().find("\n 7  " + a + "  " + b + "  " + text + "  " + c + "\n    note"),
            std::string::npos)
      << "all of it in a pipe:\n"
      << table.ToString();
  FitLinesTo(100);
}

TEST(Table, WrapsItsLastColumn) {
  Table table({{"n"}, {"text", "", Column::kWrapped}});
  table.AddRow({"1", "short"});
  const std::string line = std::string(48, 'a') + " " + std::string(48, 'b');  // 97 columns
  table.AddRow({"2", line});
  EXPECT_EQ(table.ToString(), "n  text\n1  short\n2  " + line + "\n");
  table.AddRow({"3", line + " c"});
  EXPECT_EQ(table.ToString(), "n  text\n1  short\n2  " + line + "\n3  " + line + "\n   c\n");
}

// The locale that knows the widths of characters.
bool HasLocale() {
  const locale_t locale = newlocale(LC_CTYPE_MASK, "C.UTF-8", /*base=*/nullptr);
  if (locale != nullptr) freelocale(locale);
  return locale != nullptr;
}

TEST(Table, CountsColumnsAndNotBytes) {
  if (!HasLocale()) GTEST_SKIP() << "the locale C.UTF-8 is missing";
  Table table({{"name", "", Column::kText}, {"n"}});
  table.AddRow({"\xc3\xa4", "1"});                      // a letter of two bytes
  table.AddRow({"e\xcc\x81", "2"});                     // a letter and a combining mark
  table.AddRow({"\xe4\xb8\xad\xe6\x96\x87", "3"});      // two letters of two columns
  table.AddRow({"\xef\xbc\xa1\xf0\x9f\x98\x80", "4"});  // a wide A, an emoji
  EXPECT_EQ(table.ToString(),
            "name  n\n"
            "\xc3\xa4     1\n"
            "e\xcc\x81     2\n"
            "\xe4\xb8\xad\xe6\x96\x87  3\n"
            "\xef\xbc\xa1\xf0\x9f\x98\x80  4\n");
}

TEST(Table, CutsBetweenCharacters) {
  if (!HasLocale()) GTEST_SKIP() << "the locale C.UTF-8 is missing";
  const auto repeated = [](int count, const std::string& text) {
    std::string result;
    for (int i = 0; i < count; ++i) result += text;
    return result;
  };
  const std::string wide = "\xe4\xb8\xad", marked = "e\xcc\x81";
  Table table({{"long", "", Column::kLong}});
  table.AddRow({repeated(49, wide) + "x"});
  EXPECT_EQ(table.ToString().find(".."), std::string::npos) << "99 columns";
  table.AddRow({repeated(51, wide)});
  table.AddRow({"x" + repeated(51, wide)});
  table.AddRow({repeated(101, marked)});
  const std::string text = table.ToString();
  EXPECT_NE(text.find("\n" + repeated(49, wide) + "..\n"), std::string::npos) << text;
  EXPECT_NE(text.find("\nx" + repeated(48, wide) + "..\n"), std::string::npos) << text;
  EXPECT_NE(text.find("\n" + repeated(98, marked) + "..\n"), std::string::npos) << text;
}

TEST(Table, WrapsNotes) {
  FitLinesTo(60);
  Table table({{"id"}});
  table.AddRow({"7"}, absl::StrCat(std::string(30, 'a'), " ", std::string(26, 'b')));
  EXPECT_EQ(table.ToString(), absl::StrCat("id\n 7\n    ", std::string(30, 'a'), "\n    ",
                                           std::string(26, 'b'), "\n"));
  FitLinesTo(100);
}

TEST(Table, EscapesControlCharacters) {
  Table table({{"name", "", Column::kText}, {"n"}});
  table.AddRow({"a\x1b[31m\n\x7f", "1"}, "b\r\xe2\x80\xae\xff");
  EXPECT_EQ(table.ToString(),
            "name             n\n"
            "a\\x1b[31m\\n\\x7f  1\n"
            "    b\\x0d\\xe2\\x80\\xae\\xff\n");
  Fields fields;
  fields.Add("error", "a\n\x1b[0m");
  EXPECT_EQ(fields.ToString(), "error  a\n       \\x1b[0m\n");
}

TEST(Wrap, CountsColumns) {
  if (!HasLocale()) GTEST_SKIP() << "the locale C.UTF-8 is missing";
  EXPECT_EQ(Wrap("\xe4\xb8\xad \xe4\xb8\xad \xe4\xb8\xad", 5),
            "\xe4\xb8\xad \xe4\xb8\xad\n\xe4\xb8\xad");
  EXPECT_EQ(Wrap("\xc3\xa4 \xc3\xa4 \xc3\xa4", 5), "\xc3\xa4 \xc3\xa4 \xc3\xa4");
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
