#include "proto/convert/machine_text.h"

#include <google/protobuf/text_format.h>

#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "kernels/base/status.h"
#include "proto/convert/machine_messages.h"
#include "proto/convert/shipped_text.h"
#include "proto/convert/text_message.h"

namespace agmm {

using google::protobuf::TextFormat;

absl::StatusOr<Machine> MachineFromText(absl::string_view text, const std::string& file) {
  v1::Machine message;
  TextFormat::ParseInfoTree places;
  AGMM_RETURN_IF_ERROR(ParseTextMessage(text, file, &message, &places));
  auto machine = FromProto(message);
  if (!machine.ok()) return AtField(machine.status(), file, message, places);
  return machine;
}

std::string MachineText(const Machine& machine) {
  std::string text;
  TextFormat::PrintToString(ToProto(machine), &text);
  return text;
}

std::vector<std::string> PresetNames() {
  std::vector<std::string> names;
  for (const ShippedText& preset : PresetTexts()) names.emplace_back(preset.name);
  return names;
}

absl::StatusOr<Machine> Preset(const std::string& name) {
  for (const ShippedText& preset : PresetTexts())
    if (name == preset.name) return MachineFromText(preset.text, name + ".textproto");
  return absl::InvalidArgumentError(
      absl::StrFormat("\"%s\" is not a preset; use one of %s, or the file of another machine", name,
                      absl::StrJoin(PresetNames(), ", ")));
}

}  // namespace agmm
