#include "client/ctl/topo_text.h"

#include <cmath>
#include <map>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_replace.h"
#include "client/ctl/report.h"
#include "client/ctl/table.h"
#include "kernels/base/utf8.h"

namespace agmm {
namespace {

std::string Gigabytes(double gb_per_s) {
  return gb_per_s > 0 ? absl::StrFormat("%.3g", gb_per_s) : "-";
}

std::string NodeName(const v1::MachineStatus& status, int node) {
  return node >= 0 && node < status.node_names_size() ? status.node_names(node)
                                                      : absl::StrCat(node);
}

// "measured 2026-11-27 12:00:00 (3m ago)", or "preset cpu-tcp".
std::string SourceText(const v1::WorldMachine& world, absl::Time now) {
  if (!world.has_measure_time())
    return absl::StrFormat("preset %s; `agmmctl topo --measure` measures the world",
                           world.preset());
  const absl::Time time = FromProto(world.measure_time());
  const absl::Duration age = absl::Trunc(now - time, absl::Seconds(1));
  return absl::StrFormat(
      "measured %s, %s", absl::FormatTime("%Y-%m-%d %H:%M:%S", time, absl::LocalTimeZone()),
      age <= absl::ZeroDuration() ? "just now" : absl::StrCat(absl::FormatDuration(age), " ago"));
}

// The rates that a world without measurements has.
void AddPreset(const char* name, const v1::MachineLinks& links, Table* table) {
  table->AddRow({name, "", Gigabytes(links.one_way_gb_per_s()), Gigabytes(links.two_way_gb_per_s()),
                 absl::StrFormat("%.1f", links.latency_us()), "", "preset"});
}

std::string PathTable(const v1::MachineStatus& status) {
  const v1::WorldMachine& world = status.world();
  Table table({LongWords("from"), LongWords("to"), Number("one way", "GB/s"),
               Number("both ways", "GB/s"), Number("latency", "us"), Words("path"),
               Words("source")});
  const auto end = [&](int node, int rank) {
    return absl::StrFormat("%s rank %d", NodeName(status, node), rank);
  };
  bool between = false, within = false;
  for (const v1::MeasuredPath& path : world.paths()) {
    (path.from_node() == path.to_node() ? within : between) = true;
    table.AddRow({end(path.from_node(), path.from_rank()), end(path.to_node(), path.to_rank()),
                  Gigabytes(path.one_way_gb_per_s()), Gigabytes(path.two_way_gb_per_s()),
                  absl::StrFormat("%.1f", path.latency_us()), path.path(), "measured"});
  }
  if (!between) AddPreset("between nodes", world.machine().between(), &table);
  if (!within) AddPreset("within a node", world.machine().within(), &table);
  return table.ToString();
}

// "0.0042: 31.2, 0.9: 48.1": sizes in GFLOP, and rates.
std::string RatesText(const std::vector<const v1::MachineGemm*>& rates) {
  return absl::StrJoin(rates, ", ", [](std::string* text, const v1::MachineGemm* rate) {
    absl::StrAppendFormat(text, "%.3g: %.4g", rate->gflop(), rate->gflop_per_s());
  });
}

using Gemms = google::protobuf::RepeatedPtrField<v1::MachineGemm>;

void AddRates(const std::string& rank, const Gemms& gemms, double copy_gb_per_s, Table* table) {
  std::map<v1::DType, std::vector<const v1::MachineGemm*>> by_dtype;
  for (const v1::MachineGemm& gemm : gemms) by_dtype[gemm.dtype()].push_back(&gemm);
  std::string copy = Gigabytes(copy_gb_per_s);
  for (const auto& [dtype, rates] : by_dtype) {
    table->AddRow({rank, EnumName(dtype), copy, RatesText(rates)});
    copy.clear();
  }
  if (by_dtype.empty()) table->AddRow({rank, "-", copy});
}

std::string DeviceTable(const v1::WorldMachine& world) {
  Table table({Words("rank"), Words("dtype"), Number("copy", "GB/s"),
               WrappedWords("rate in GFLOP/s, by GFLOP of the product")});
  for (const v1::MeasuredDevice& device : world.devices())
    AddRates(absl::StrCat(device.rank()), device.gemm(), device.copy_gb_per_s(), &table);
  if (world.devices().empty()) {
    const v1::MachineDevice& device = world.machine().device();
    AddRates("preset", device.gemm(), device.memory_gb_per_s() / 2, &table);
  }
  return table.ToString();
}

}  // namespace

std::string TopoText(const v1::MachineStatus& status, absl::Time now) {
  const v1::WorldMachine& world = status.world();
  std::string text = absl::StrFormat("machine %s, version %d: %s\n", world.machine().name(),
                                     world.machine().version(), SourceText(world, now));
  if (status.state() != v1::MachineStatus::STATE_IDLE)
    absl::StrAppend(&text, MeasuringText(status), "\n");
  for (const std::string& error : world.errors())
    absl::StrAppend(&text, Wrap(Printable(absl::StrCat("not measured: ", error))), "\n");
  absl::StrAppend(&text, "\n", PathTable(status), "\n", DeviceTable(world));
  if (world.has_measure_time() && !world.preset_fields().empty()) {
    absl::StrAppend(&text, "\n",
                    Wrap(absl::StrFormat("not measured, from the preset %s: %s", world.preset(),
                                         absl::StrJoin(world.preset_fields(), ", "))),
                    "\n");
  }
  return text;
}

std::string MeasuringText(const v1::MachineStatus& status, const std::string& incomplete) {
  std::string text = "measuring";
  if (status.state() != v1::MachineStatus::STATE_MEASURING) {
    text = incomplete.empty() ? absl::StrCat("the measurement waits for ", status.waits_for())
                              : absl::StrCat("the measurement waits: ", incomplete);
  }
  if (status.probe_count() > 0)
    absl::StrAppendFormat(&text, ": %d of %d figures", status.probes_done(), status.probe_count());
  return text;
}

}  // namespace agmm
