// The output of agmmctl --json: one document a line, with a stable schema. Fields are added, never
// renamed or removed. Ids, sizes and counts are numbers, times are RFC 3339 in UTC, and a value
// that is absent or not known is null. tests/golden/json holds a document of each schema. Pure.
#pragma once

#include <google/protobuf/message.h>

#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "client/ctl/report.h"
#include "client/ctl/session_table.h"
#include "client/trace/ordered_json.h"

namespace nlohmann {

template <typename T>
struct adl_serializer<std::optional<T>> {
  template <typename Json>
  static void to_json(Json& json, const std::optional<T>& value) {
    json = value.has_value() ? Json(*value) : Json(nullptr);
  }
};

}  // namespace nlohmann

namespace agmm {

// All fields of `message`, by reflection, under their own names except for the few that json.cc
// lists. A job is "agmm.job.v1", a tensor "agmm.tensor.v1", and so on.
Json ToJson(const google::protobuf::Message& message);
// "agmm.job_event.v1": an event of job `job_id`.
Json ToJson(uint64_t job_id, const v1::JobEvent& event);
// "agmm.tensor_list.v1": the tensors, and the bytes by class.
Json ToJson(const v1::ListTensorsResponse& list, const v1::GetStatusResponse& status);
// "agmm.session_list.v1": the sessions, the owners of other tensors, and the bytes by class.
Json ToJson(const v1::ListSessionsResponse& sessions,
            const std::vector<PermanentTensors>& permanent, const v1::GetStatusResponse& status);
// "agmm.tensor.v1" with the file.
Json ToJson(const v1::Tensor& tensor, const SavedFile& saved);
// "agmm.error.v1": why agmmctl failed.
Json ToJson(const absl::Status& error);

// Null for an empty text.
Json NullIfEmpty(const std::string& text);
// The document as a line. Bytes that are not UTF-8, as file names may have, become U+FFFD.
std::string JsonLine(const Json& json);

}  // namespace agmm
