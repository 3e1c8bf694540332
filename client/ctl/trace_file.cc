#include "client/ctl/trace_file.h"

#include <memory>

#include "absl/algorithm/container.h"
#include "absl/strings/str_format.h"
#include "client/files/output_file.h"
#include "kernels/base/status.h"
#include "kernels/base/units.h"

namespace agmm {

absl::StatusOr<int64_t> WriteTrace(const std::string& path, const Json& trace) {
  AGMM_ASSIGN_OR_RETURN(const std::unique_ptr<OutputFile> file, OutputFile::Create(path));
  AGMM_RETURN_IF_ERROR(file->Write(trace.dump() + "\n"));
  AGMM_RETURN_IF_ERROR(file->Commit());
  return absl::c_count_if(trace["traceEvents"], [](const Json& event) {
    return event["ph"] == "X" && event["cat"] != "wait";
  });
}

std::string TraceFileText(const std::string& path, int64_t steps) {
  return absl::StrFormat("%s: %s; open it in https://ui.perfetto.dev or chrome://tracing\n", path,
                         Counted(steps, "step"));
}

}  // namespace agmm
