#include "client/ctl/session_table.h"

#include <algorithm>
#include <map>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "client/ctl/report.h"
#include "client/ctl/table.h"
#include "client/trace/world_view.h"

namespace agmm {
namespace {

// All connections of a host are one owner.
std::string WithoutPort(const std::string& owner) {
  return absl::StartsWith(owner, "ipv") ? owner.substr(0, owner.rfind(':')) : owner;
}

// "42 s", "17 min", "30 h", "12 d".
std::string AgeText(absl::Duration age) {
  if (age < absl::Minutes(1))
    return absl::StrFormat("%d s", std::max<int64_t>(0, absl::ToInt64Seconds(age)));
  if (age < absl::Hours(1)) return absl::StrFormat("%d min", absl::ToInt64Minutes(age));
  if (age < absl::Hours(48)) return absl::StrFormat("%d h", absl::ToInt64Hours(age));
  return absl::StrFormat("%d d", absl::ToInt64Hours(age) / 24);
}

std::string OrDash(const std::string& text) { return text.empty() ? "-" : text; }

}  // namespace

std::vector<PermanentTensors> PermanentByOwner(const v1::ListTensorsResponse& list) {
  std::map<std::string, PermanentTensors> owners;
  for (const v1::Tensor& tensor : list.tensors()) {
    if (!tensor.session_id().empty()) continue;
    const std::string owner = WithoutPort(tensor.owner());
    PermanentTensors& tensors = owners[owner];
    tensors.owner = owner;
    ++tensors.count;
    tensors.bytes += tensor.shard_bytes() * MeshOf(tensor.spec().mesh()).size();
  }
  std::vector<PermanentTensors> all;
  for (auto& [owner, tensors] : owners) all.push_back(std::move(tensors));
  return all;
}

std::string SessionTable(const v1::ListSessionsResponse& sessions,
                         const std::vector<PermanentTensors>& permanent,
                         const v1::GetStatusResponse& status, absl::Time now) {
  if (sessions.sessions().empty() && permanent.empty()) return "no sessions and no tensors\n";
  using Row = std::pair<int64_t, std::vector<std::string>>;  // with its bytes
  std::vector<Row> rows;
  const auto mebibytes = [](int64_t bytes) { return absl::StrFormat("%.1f", bytes / 1048576.0); };
  const NodeNameFn name_of = NamesOf(status);
  for (const v1::Session& session : sessions.sessions()) {
    rows.emplace_back(
        session.tensor_bytes(),
        std::vector<std::string>{
            absl::StrCat(session.number()), OrDash(session.owner()), OrDash(session.program()),
            name_of(session.node()), AgeText(now - absl::FromUnixMicros(session.opened_unix_us())),
            absl::StrCat(session.tensor_count()), mebibytes(session.tensor_bytes()),
            absl::StrCat(session.job_count())});
  }
  for (const PermanentTensors& tensors : permanent) {
    rows.emplace_back(
        tensors.bytes,
        std::vector<std::string>{"-", OrDash(tensors.owner), "(tensors without a session)", "-",
                                 "-", absl::StrCat(tensors.count), mebibytes(tensors.bytes), "-"});
  }
  std::stable_sort(rows.begin(), rows.end(),
                   [](const Row& a, const Row& b) { return a.first > b.first; });
  Table table({Number("session"), LongWords("owner"), LongWords("program"), LongWords("node"),
               Number("age"), Number("tensors"), Number("all ranks", "MiB"), Number("jobs")});
  for (Row& row : rows) table.AddRow(std::move(row.second));
  return table.ToString();
}

}  // namespace agmm
