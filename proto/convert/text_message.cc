#include "proto/convert/text_message.h"

#include <google/protobuf/descriptor.h>

#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "kernels/base/status.h"
#include "proto/convert/first_text_error.h"

namespace agmm {
namespace {

using google::protobuf::FieldDescriptor;
using google::protobuf::Message;
using google::protobuf::TextFormat;

}  // namespace

absl::Status ParseTextMessage(absl::string_view text, const std::string& file, Message* message,
                              TextFormat::ParseInfoTree* places, int first_line, int first_column) {
  FirstTextError fault(file, first_line, first_column);
  TextFormat::Parser parser;
  parser.RecordErrorsTo(&fault);
  parser.WriteLocationsTo(places);
  if (parser.ParseFromString(std::string(text), message)) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrFormat("%s; correct this text of %s",
                                                    absl::StripSuffix(fault.text(), "."),
                                                    message->GetDescriptor()->full_name()));
}

absl::Status AtField(const absl::Status& status, const std::string& file, const Message& message,
                     const TextFormat::ParseInfoTree& places, int first_line, int first_column) {
  if (status.ok()) return status;
  const absl::string_view error(status.message().data(), status.message().size());
  const absl::string_view path = error.substr(0, error.find_first_of(": "));
  TextFormat::ParseLocation found(-1, -1);
  const TextFormat::ParseInfoTree* tree = &places;
  const google::protobuf::Descriptor* type = message.GetDescriptor();
  for (const absl::string_view part : absl::StrSplit(path, '.')) {
    if (tree == nullptr || type == nullptr) break;
    const std::vector<absl::string_view> name_and_index = absl::StrSplit(part, '[');
    const FieldDescriptor* field = type->FindFieldByName(std::string(name_and_index[0]));
    if (field == nullptr) break;
    int index = field->is_repeated() ? 0 : -1;
    if (name_and_index.size() > 1)
      (void)absl::SimpleAtoi(name_and_index[1].substr(0, name_and_index[1].find(']')), &index);
    const TextFormat::ParseLocation at = tree->GetLocation(field, index);
    if (at.line < 0) break;
    found = at;
    type = field->message_type();
    tree = type == nullptr ? nullptr : tree->GetTreeForNested(field, index);
  }
  return Annotate(status,
                  found.line < 0
                      ? file
                      : absl::StrFormat("%s:%d:%d", file, first_line + found.line + 1,
                                        (found.line == 0 ? first_column : 0) + found.column + 1));
}

}  // namespace agmm
