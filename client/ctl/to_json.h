// What agmmctl --json prints for the daemons' messages: stable schemas, one document a line. Pure.
// Fields are added, never renamed or removed. Ids, sizes and counts are numbers; times are RFC 3339
// in UTC; what is not there or not known is null. tests/golden/json holds one of each.
#pragma once

#include <nlohmann/json.hpp>
#include <string>

#include "absl/status/status.h"
#include "agmm/v1/cluster.pb.h"
#include "agmm/v1/job.pb.h"
#include "agmm/v1/tensor.pb.h"
#include "client/ctl/tensor_report.h"

namespace agmm {

// "agmm.status.v1". `endpoint` is the daemon that was asked.
nlohmann::ordered_json ToJson(const v1::GetStatusResponse& status, const std::string& endpoint);

// "agmm.tensor.v1".
nlohmann::ordered_json ToJson(const v1::Tensor& tensor);
// The same, with what a get has written of it.
nlohmann::ordered_json ToJson(const v1::Tensor& tensor, const SavedFile& saved);
// "agmm.tensor_list.v1", with the bytes by class of `status`, summed over the ranks.
nlohmann::ordered_json ToJson(const v1::ListTensorsResponse& list,
                              const v1::GetStatusResponse& status);

// "agmm.error.v1": why agmmctl failed.
nlohmann::ordered_json ToJson(const absl::Status& error);

// The document as a line. Bytes that are no UTF-8, which names of files may have, become U+FFFD.
std::string JsonLine(const nlohmann::ordered_json& json);

// "agmm.job.v1".
nlohmann::ordered_json ToJson(const v1::Job& job);
// "agmm.job_list.v1": jobs as above, newest first.
nlohmann::ordered_json ToJson(const v1::ListJobsResponse& list);
// "agmm.job_event.v1", of that job.
nlohmann::ordered_json ToJson(uint64_t job_id, const v1::JobEvent& event);

}  // namespace agmm
