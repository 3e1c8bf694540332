#include "client/ctl/json.h"

#include <google/protobuf/descriptor.h>

#include <utility>

#include "absl/algorithm/container.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "absl/types/span.h"
#include "kernels/base/reason.h"
#include "proto/convert/rpc_status.h"

namespace agmm {
namespace {

using Field = google::protobuf::FieldDescriptor;
using google::protobuf::Message;
using google::protobuf::Reflection;
using NamePair = std::pair<absl::string_view, absl::string_view>;

// The messages that are documents: "agmm.NAME.v1".
constexpr NamePair kDocuments[] = {{"GetStatusResponse", "status"},
                                   {"Tensor", "tensor"},
                                   {"ListTensorsResponse", "tensor_list"},
                                   {"ListSessionsResponse", "session_list"},
                                   {"Job", "job"},
                                   {"ListJobsResponse", "job_list"},
                                   {"MachineStatus", "machine"},
                                   {"TuningStatus", "tuning"}};

// Fields that have another name in JSON; an empty name leaves the field out.
constexpr NamePair kRenamed[] = {{"DeviceStatus.thread_count", "threads"},
                                 {"GetStatusResponse.metrics", ""},
                                 {"Job.operands", ""},
                                 {"Job.ranks", "reports"},
                                 {"Job.repeat_count", "repeat"},
                                 {"Job.sequencer", "run"},
                                 {"Job.timeout", "timeout_s"},
                                 {"ListJobsResponse.next_before_job_id", ""},
                                 {"ListSessionsResponse.next_after_number", ""},
                                 {"ListTensorsResponse.next_after_tensor_id", ""},
                                 {"NodeStatus.index", "node"},
                                 {"PlanOptions.chunk_count", "chunks"},
                                 {"PlanOptions.k_chunk_count", "k_chunks"},
                                 {"PlanOptions.workspace_shard_count", "workspace_shards"},
                                 {"Tensor.sequencer", ""}};

// Numbers and texts, or messages of them, whose zero means "not known" or "none".
constexpr absl::string_view kZeroIsNull[] = {"Job.engine",
                                             "Job.plan_hash",
                                             "Job.request_id",
                                             "Job.schedule",
                                             "Job.sequencer",
                                             "Job.session_id",
                                             "Job.transport",
                                             "JobFigures",
                                             "PlanOptions.algorithm",
                                             "PlanOptions.split",
                                             "Session.program",
                                             "Tensor.name",
                                             "RankReport.start_unix_us",
                                             "RankReport.epoch_start_unix_us",
                                             "Tensor.session_id",
                                             "TuningStatus.file"};

// Returns the second of the pair that begins with `key`, if there is one.
std::optional<std::string> Find(absl::Span<const NamePair> names, absl::string_view key) {
  for (const auto& [from, to] : names)
    if (from == key) return std::string(to);
  return std::nullopt;
}

Json FieldsOf(const Message& message);

Json ErrorJson(const absl::Status& error) {
  return {{"code", absl::StatusCodeToString(error.code())},
          {"message", std::string(error.message())},
          {"reason", NullIfEmpty(ReasonOf(error))}};
}

Json MessageJson(const Message& message) {
  if (const auto* time = dynamic_cast<const google::protobuf::Timestamp*>(&message))
    return absl::FormatTime("%Y-%m-%dT%H:%M:%E6SZ", FromProto(*time), absl::UTCTimeZone());
  if (const auto* duration = dynamic_cast<const google::protobuf::Duration*>(&message))
    return absl::ToDoubleSeconds(FromProto(*duration));
  if (const auto* error = dynamic_cast<const google::rpc::Status*>(&message))
    return ErrorJson(FromProto(*error));
  return FieldsOf(message);
}

// Returns the value of a field, or its element `index` if it is repeated.
Json ValueOf(const Message& message, const Field* field, int index) {
  const Reflection& reflection = *message.GetReflection();
  const auto get = [&](auto singular, auto repeated) {
    return field->is_repeated() ? Json((reflection.*repeated)(message, field, index))
                                : Json((reflection.*singular)(message, field));
  };
  switch (field->cpp_type()) {
    case Field::CPPTYPE_INT32: return get(&Reflection::GetInt32, &Reflection::GetRepeatedInt32);
    case Field::CPPTYPE_INT64: return get(&Reflection::GetInt64, &Reflection::GetRepeatedInt64);
    case Field::CPPTYPE_UINT32: return get(&Reflection::GetUInt32, &Reflection::GetRepeatedUInt32);
    case Field::CPPTYPE_UINT64: return get(&Reflection::GetUInt64, &Reflection::GetRepeatedUInt64);
    case Field::CPPTYPE_DOUBLE: return get(&Reflection::GetDouble, &Reflection::GetRepeatedDouble);
    case Field::CPPTYPE_FLOAT: return get(&Reflection::GetFloat, &Reflection::GetRepeatedFloat);
    case Field::CPPTYPE_BOOL: return get(&Reflection::GetBool, &Reflection::GetRepeatedBool);
    case Field::CPPTYPE_STRING: return get(&Reflection::GetString, &Reflection::GetRepeatedString);
    case Field::CPPTYPE_ENUM:
      return EnumName(field->enum_type(),
                      field->is_repeated() ? reflection.GetRepeatedEnumValue(message, field, index)
                                           : reflection.GetEnumValue(message, field));
    case Field::CPPTYPE_MESSAGE:
      return MessageJson(field->is_repeated() ? reflection.GetRepeatedMessage(message, field, index)
                                              : reflection.GetMessage(message, field));
  }
  return nullptr;
}

void AddField(const Message& message, const Field* field, Json* json) {
  const Reflection& reflection = *message.GetReflection();
  const std::string& message_name = message.GetDescriptor()->name();
  const std::string field_name = absl::StrCat(message_name, ".", field->name());
  const std::string name = Find(kRenamed, field_name).value_or(field->name());
  if (name.empty()) return;
  if (field->is_repeated()) {
    Json values = Json::array();
    for (int i = 0; i < reflection.FieldSize(message, field); ++i)
      values.push_back(ValueOf(message, field, i));
    (*json)[name] = std::move(values);
    return;
  }
  // The fields of options, specs and meshes are merged into the enclosing object.
  if (const auto* type = field->message_type(); type != nullptr) {
    const Message& value = reflection.GetMessage(message, field);
    if (type == v1::PlanOptions::descriptor() || type == v1::TensorSpec::descriptor()) {
      json->update(FieldsOf(value));
      return;
    }
    if (type == v1::Mesh::descriptor()) {
      const Mesh mesh = MeshOf(dynamic_cast<const v1::Mesh&>(value));
      (*json)["mesh"] = mesh.ToString();
      (*json)["ranks"] = mesh.ranks;
      return;
    }
  }
  const bool is_null =
      !reflection.HasField(message, field) &&
      (field->message_type() != nullptr || absl::c_linear_search(kZeroIsNull, field_name) ||
       absl::c_linear_search(kZeroIsNull, message_name));
  (*json)[name] = is_null ? Json(nullptr) : ValueOf(message, field, 0);
}

Json FieldsOf(const Message& message) {
  Json json = Json::object();
  const auto* type = message.GetDescriptor();
  if (const auto document = Find(kDocuments, type->name()))
    json["schema"] = absl::StrCat("agmm.", *document, ".v1");
  for (int i = 0; i < type->field_count(); ++i) AddField(message, type->field(i), &json);
  // Metrics are looked up by name.
  if (const auto* status = dynamic_cast<const v1::GetStatusResponse*>(&message)) {
    json["metrics"] = Json::object();
    for (const v1::Metric& metric : status->metrics())
      json["metrics"][metric.name()] = metric.value();
  }
  return json;
}

// The bytes by class, summed over the devices.
Json MemoryJson(const v1::GetStatusResponse& status) {
  using Device = v1::DeviceStatus;
  return {{"heap_bytes", Sum(status, &Device::heap_bytes)},
          {"free_bytes", Sum(status, &Device::heap_free_bytes)},
          {"tensor_bytes", Sum(status, &Device::tensor_bytes)},
          {"held_bytes", Sum(status, &Device::held_bytes)},
          {"workspace_bytes", Sum(status, &Device::workspace_bytes)},
          {"packed_bytes", Sum(status, &Device::packed_bytes)},
          {"scratch_bytes", Sum(status, &Device::scratch_bytes)},
          {"staging_bytes", StagingBytes(status)}};
}

}  // namespace

Json ToJson(const Message& message) { return FieldsOf(message); }

Json ToJson(uint64_t job_id, const v1::JobEvent& event) {
  Json json = {{"schema", "agmm.job_event.v1"}, {"job_id", job_id}};
  json.update(FieldsOf(event));
  return json;
}

Json ToJson(const v1::ListTensorsResponse& list, const v1::GetStatusResponse& status) {
  Json json = ToJson(list);
  json["memory"] = MemoryJson(status);
  return json;
}

Json ToJson(const v1::ListSessionsResponse& sessions,
            const std::vector<PermanentTensors>& permanent, const v1::GetStatusResponse& status) {
  Json json = ToJson(sessions);
  json["permanent_tensors"] = Json::array();
  for (const PermanentTensors& tensors : permanent) {
    json["permanent_tensors"].push_back({{"owner", tensors.owner},
                                         {"tensor_count", tensors.count},
                                         {"tensor_bytes", tensors.bytes}});
  }
  json["memory"] = MemoryJson(status);
  return json;
}

Json ToJson(const v1::Tensor& tensor, const SavedFile& saved) {
  Json json = ToJson(tensor);
  json["file"] = {{"path", saved.path},
                  {"format", saved.raw ? "raw" : "npy"},
                  {"dtype", std::string(Name(saved.dtype))},
                  {"non_finite", saved.non_finite}};
  return json;
}

Json ToJson(const absl::Status& error) {
  return {{"schema", "agmm.error.v1"}, {"error", ErrorJson(error)}};
}

Json NullIfEmpty(const std::string& text) { return text.empty() ? Json(nullptr) : Json(text); }

std::string JsonLine(const Json& json) {
  return json.dump(-1, ' ', false, Json::error_handler_t::replace) + "\n";
}

}  // namespace agmm
