// Messages in protobuf's text format, with errors that point at a line and a column.
#pragma once

#include <google/protobuf/message.h>
#include <google/protobuf/text_format.h>

#include <string>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"

namespace agmm {

// Parses `text`, the contents of `file` from a line and column on, which count from 0; `places`
// receives where each field is. Errors: INVALID_ARGUMENT, "file:line:column: ..." with the first
// fault.
absl::Status ParseTextMessage(absl::string_view text, const std::string& file,
                              google::protobuf::Message* message,
                              google::protobuf::TextFormat::ParseInfoTree* places,
                              int first_line = 0, int first_column = 0);

// Puts "file:line:column: " before an error that begins with the path of a field, such as
// "device.gemm[2].gflop". If the text does not have that field, the place is that of the innermost
// message that it has; without any, only the file is named. OK stays OK.
absl::Status AtField(const absl::Status& status, const std::string& file,
                     const google::protobuf::Message& message,
                     const google::protobuf::TextFormat::ParseInfoTree& places, int first_line = 0,
                     int first_column = 0);

}  // namespace agmm
