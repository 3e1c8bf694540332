#include "proto/convert/tuning_messages.h"

#include <cmath>
#include <cstdint>
#include <optional>
#include <string>
#include <utility>

#include "absl/algorithm/container.h"
#include "absl/strings/escaping.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "absl/strings/string_view.h"
#include "absl/time/civil_time.h"
#include "kernels/base/status.h"
#include "kernels/base/utf8.h"
#include "kernels/schedule/index.h"
#include "kernels/schedule/spec.h"
#include "kernels/schedule/split.h"
#include "proto/convert/plan_inputs.h"

namespace agmm {
namespace {

// Rounds to thousandths of a unit, because a table is read by people.
double Rounded(double value) { return std::round(value * 1e3) / 1e3; }

constexpr size_t kMaxTextBytes = 1024, kMaxHardwareBytes = 4096;

absl::Status Wrong(absl::string_view field, absl::string_view what) {
  // Errors of the notation have two more lines, which show it.
  return absl::InvalidArgumentError(absl::StrCat(field, " ", what.substr(0, what.find('\n'))));
}

absl::Status CheckLength(absl::string_view field, absl::string_view text, size_t most) {
  if (text.size() <= most) return absl::OkStatus();
  return Wrong(field, absl::StrFormat("has %d bytes; at most %d are taken", text.size(), most));
}

absl::Status CheckDimension(absl::string_view field, int64_t size) {
  if (size >= 1 && size <= kMaxDimension) return absl::OkStatus();
  return Wrong(field, absl::StrFormat("is %d, outside [1, %d]; give the size of the measured one",
                                      size, kMaxDimension));
}

absl::Status CheckFigure(absl::string_view field, double value, bool may_be_zero) {
  if (std::isfinite(value) && (may_be_zero ? value >= 0 : value > 0)) return absl::OkStatus();
  return Wrong(field, absl::StrFormat("is %g; give a finite number %s", value,
                                      may_be_zero ? "that is not negative" : "above 0"));
}

absl::StatusOr<Problem> ProblemOf(const v1::TunedPlan& proto) {
  AGMM_RETURN_IF_ERROR(CheckLength("mesh", proto.mesh(), kMaxTextBytes));
  AGMM_RETURN_IF_ERROR(CheckLength("spec", proto.spec(), kMaxTextBytes));
  const absl::StatusOr<Mesh> mesh = ParseMesh(proto.mesh());
  if (!mesh.ok()) return Wrong("mesh", absl::StrCat("is wrong: ", mesh.status().message()));
  absl::StatusOr<ParsedSpec> parsed = ParseSpec(proto.spec(), *mesh);
  if (!parsed.ok()) return Wrong("spec", absl::StrCat("is wrong: ", parsed.status().message()));
  if (absl::c_any_of(parsed->dtypes, [](const auto& dtype) { return dtype.has_value(); }))
    return Wrong("spec", "has dtypes; leave them out, and give those of all operands in dtypes");
  AGMM_RETURN_IF_ERROR(CheckDimension("m", proto.m()));
  AGMM_RETURN_IF_ERROR(CheckDimension("n", proto.n()));
  const bool product = HasProduct(parsed->problem);
  if (product) AGMM_RETURN_IF_ERROR(CheckDimension("k", proto.k()));
  if (!product && proto.k() != 0)
    return Wrong("k",
                 absl::StrFormat("is %d, but the spec has no product; leave it out", proto.k()));
  absl::StatusOr<Problem> problem =
      ParseProblem(proto.spec(), *mesh, {proto.m(), proto.n(), proto.k()}, DType::kF32);
  if (!problem.ok()) return Wrong("spec", absl::StrCat("is wrong: ", problem.status().message()));
  if (proto.dtypes_size() != static_cast<int>(problem->tensors.size())) {
    return Wrong("dtypes",
                 absl::StrFormat("has %d entries, but the spec has %d operands; give one for each",
                                 proto.dtypes_size(), problem->tensors.size()));
  }
  for (int i = 0; i < proto.dtypes_size(); ++i) {
    const absl::StatusOr<DType> dtype = FromProto(proto.dtypes(i));
    if (!dtype.ok()) return Wrong(absl::StrFormat("dtypes[%d]", i), dtype.status().message());
    problem->tensors[i].dtype = *dtype;
  }
  if (const absl::Status valid = Validate(*problem); !valid.ok())
    return Wrong("dtypes", absl::StrCat("do not fit: ", valid.message()));
  return problem;
}

absl::Status CheckRanksPerNode(const v1::TunedPlan& proto, const Mesh& mesh) {
  int64_t sum = 0;
  for (const int count : proto.ranks_per_node()) {
    if (count < 1)
      return Wrong("ranks_per_node", absl::StrFormat("has %d; give counts from 1 on", count));
    sum += count;
  }
  if (sum == mesh.size()) return absl::OkStatus();
  return Wrong("ranks_per_node",
               absl::StrFormat("has %d ranks in all, but mesh %s has %d; give those of each node",
                               sum, mesh.ToString(), mesh.size()));
}

absl::StatusOr<PlanOptions> OptionsOf(const v1::PlanOptions& proto, const Problem& problem) {
  if (const auto partials = PartialsOf(proto.partials()); !partials.ok())
    return Wrong("options.partials", absl::StrCat("is wrong: ", partials.status().message()));
  PlanOptions options = FromProto(proto);
  if (options.algorithm == "auto")
    return Wrong("options.algorithm", "is open; give the name of the algorithm that was measured");
  if (FindAlgorithm(options.algorithm) == nullptr) {
    return Wrong("options.algorithm", absl::StrFormat("\"%s\" is not known; use one of %s",
                                                      absl::CHexEscape(options.algorithm),
                                                      absl::StrJoin(AlgorithmNames(), ", ")));
  }
  for (const auto& [field, count] : {std::pair("options.chunk_count", options.chunks),
                                     {"options.k_chunk_count", options.k_chunks}}) {
    if (count < 1 || count > kMaxChunks)
      return Wrong(field, absl::StrFormat("is %d, outside [1, %d]; give the measured one", count,
                                          kMaxChunks));
  }
  if (options.transfers_only)
    return Wrong("options.transfers_only", "is true, so the time is not that of the problem");
  if (options.split.empty())
    return Wrong("options.split", "is open; give the axes that cut M, N and K, or \"none\"");
  AGMM_RETURN_IF_ERROR(CheckLength("options.split", options.split, kMaxTextBytes));
  const absl::StatusOr<Split> split = ParseSplit(problem, options.split);
  absl::Status fits = split.status();
  if (fits.ok() && HasProduct(problem)) fits = CheckSplit(problem, *split);
  if (!fits.ok()) return Wrong("options.split", absl::StrCat("is wrong: ", fits.message()));
  options.split = SplitText(problem, *split);
  if (const absl::Status wrong = CheckOptions(problem, options); !wrong.ok())
    return Wrong("options", absl::StrCat("are wrong: ", wrong.message()));
  return options;
}

}  // namespace

absl::StatusOr<TunedPlan> FromProto(const v1::TunedPlan& proto) {
  TunedPlan plan;
  AGMM_ASSIGN_OR_RETURN(const Problem problem, ProblemOf(proto));
  AGMM_RETURN_IF_ERROR(CheckRanksPerNode(proto, problem.mesh));
  AGMM_RETURN_IF_ERROR(CheckLength("hardware", proto.hardware(), kMaxHardwareBytes));
  if (const std::optional<size_t> begin = NoUtf8From(proto.hardware()); begin.has_value()) {
    return Wrong("hardware",
                 absl::StrFormat("is not UTF-8 from byte %d on; encode it as UTF-8", *begin));
  }
  AGMM_RETURN_IF_ERROR(CheckFigure("between_gb_per_s", proto.between_gb_per_s(), true));
  AGMM_ASSIGN_OR_RETURN(plan.options, OptionsOf(proto.options(), problem));
  AGMM_RETURN_IF_ERROR(CheckFigure("time_us", proto.time_us(), false));
  AGMM_RETURN_IF_ERROR(CheckFigure("serial_us", proto.serial_us(), true));
  absl::CivilDay day;
  if (!absl::ParseCivilTime(proto.date(), &day)) {
    return Wrong("date", absl::StrFormat("is \"%s\"; give a day such as 2026-11-27",
                                         absl::CHexEscape(proto.date().substr(0, 32))));
  }
  TuningKey& key = plan.key;
  key.spec = SpecWithoutDtypes(problem);
  for (const Tensor& tensor : problem.tensors) key.dtypes.push_back(tensor.dtype);
  key.mesh = problem.mesh.ToString();
  key.ranks_per_node = {proto.ranks_per_node().begin(), proto.ranks_per_node().end()};
  key.m = proto.m();
  key.n = proto.n();
  key.k = proto.k();
  key.hardware = proto.hardware();
  key.between_bytes_per_ns = proto.between_gb_per_s();
  plan.time_us = proto.time_us();
  plan.serial_us = proto.serial_us();
  plan.date = absl::FormatCivilTime(day);
  return plan;
}

v1::TunedPlan ToProto(const TunedPlan& plan) {
  v1::TunedPlan proto;
  proto.set_spec(plan.key.spec);
  for (const DType dtype : plan.key.dtypes) proto.add_dtypes(ToProto(dtype));
  proto.set_mesh(plan.key.mesh);
  proto.mutable_ranks_per_node()->Add(plan.key.ranks_per_node.begin(),
                                      plan.key.ranks_per_node.end());
  proto.set_m(plan.key.m);
  proto.set_n(plan.key.n);
  proto.set_k(plan.key.k);
  proto.set_hardware(plan.key.hardware);
  proto.set_between_gb_per_s(Rounded(plan.key.between_bytes_per_ns));
  *proto.mutable_options() = ToProto(plan.options);
  proto.set_time_us(Rounded(plan.time_us));
  proto.set_serial_us(Rounded(plan.serial_us));
  proto.set_date(plan.date);
  return proto;
}

}  // namespace agmm
