#include "client/ctl/seed_table.h"

#include <cmath>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "client/ctl/table.h"
#include "kernels/base/status.h"
#include "proto/convert/machine_text.h"

namespace agmm {
namespace {

std::string Figure(double value) {
  return std::isnan(value) ? "not given" : absl::StrFormat("%.6g", value);
}

}  // namespace

absl::StatusOr<std::vector<SeedRow>> AllSeedRows() {
  SeedMachines machines;
  AGMM_ASSIGN_OR_RETURN(machines.tpu_v4p, Preset("tpu-v4p"));
  AGMM_ASSIGN_OR_RETURN(machines.tpu_v5e, Preset("tpu-v5e"));
  AGMM_ASSIGN_OR_RETURN(machines.tpu_v5p, Preset("tpu-v5p"));
  AGMM_ASSIGN_OR_RETURN(machines.h100, Preset("h100-nvlink"));
  AGMM_ASSIGN_OR_RETURN(const SimulatedFigures simulated, SimulateFigures(machines));
  return SeedRows(machines, simulated);
}

std::string SeedText(const std::vector<SeedRow>& rows) {
  std::string text;
  for (size_t i = 0; i < rows.size();) {
    const std::string& source = rows[i].source;
    Table table({Number("seed"), Number("ours"), Words("unit"), Words("question")});
    for (; i < rows.size() && rows[i].source == source; ++i) {
      const SeedRow& row = rows[i];
      table.AddRow({Figure(row.seed), Figure(row.ours), row.unit, row.question},
                   row.why.empty() ? "" : absl::StrCat("differs: ", row.why));
    }
    absl::StrAppend(&text, text.empty() ? "" : "\n", source, "\n", table.ToString());
  }
  return text;
}

Json SeedJson(const std::vector<SeedRow>& rows) {
  Json all = Json::array();
  for (const SeedRow& row : rows) {
    all.push_back({{"source", row.source},
                   {"question", row.question},
                   {"unit", row.unit},
                   {"seed", std::isnan(row.seed) ? Json() : Json(row.seed)},
                   {"ours", row.ours},
                   {"agrees", Agrees(row)},
                   {"why", row.why}});
  }
  return all;
}

}  // namespace agmm
