#include "daemon/rpc/validate_terms.h"

#include <algorithm>
#include <string>
#include <vector>

#include "absl/strings/ascii.h"
#include "absl/strings/str_format.h"
#include "kernels/base/status.h"
#include "kernels/base/utf8.h"
#include "kernels/schedule/plan.h"
#include "kernels/schedule/problem.h"
#include "proto/convert/plan_inputs.h"

namespace agmm {
namespace {

template <typename... Args>
absl::Status Wrong(absl::string_view field, const absl::FormatSpec<Args...>& what,
                   const Args&... args) {
  return absl::InvalidArgumentError(absl::StrCat(field, " ", absl::StrFormat(what, args...)));
}

absl::Status CheckLength(absl::string_view field, absl::string_view text, size_t bound) {
  if (text.size() <= bound) return absl::OkStatus();
  return Wrong(field, "has %d bytes; at most %d are taken; use a shorter one", text.size(), bound);
}

absl::Status CheckGiven(absl::string_view field, absl::string_view text) {
  return text.empty() ? Wrong(field, "is empty; set it") : absl::OkStatus();
}

}  // namespace

absl::Status CheckId(absl::string_view field, absl::string_view id) {
  AGMM_RETURN_IF_ERROR(CheckLength(field, id, kMaxIdBytes));
  for (size_t i = 0; i < id.size(); ++i) {
    if (absl::ascii_isprint(static_cast<unsigned char>(id[i]))) continue;
    return Wrong(field, "has byte 0x%02x at %d; use printable ASCII, such as hex digits",
                 static_cast<unsigned char>(id[i]), i);
  }
  return absl::OkStatus();
}

absl::Status CheckIdGiven(absl::string_view field, absl::string_view id) {
  AGMM_RETURN_IF_ERROR(CheckGiven(field, id));
  return CheckId(field, id);
}

absl::Status CheckIdGiven(absl::string_view field, uint64_t id) {
  return id == 0 ? Wrong(field, "is 0; set it") : absl::OkStatus();
}

absl::Status CheckName(absl::string_view field, absl::string_view name) {
  AGMM_RETURN_IF_ERROR(CheckGiven(field, name));
  AGMM_RETURN_IF_ERROR(CheckLength(field, name, kMaxNameBytes));
  if (name.front() == '#')
    return Wrong(field, "begins with '#', which marks an id; begin it otherwise");
  if (const size_t comma = name.find(','); comma != name.npos) {
    return Wrong(field,
                 "has ',' at byte %d, which separates names on command lines; use another "
                 "character, such as '.' or '/'",
                 comma);
  }
  if (name.front() == ' ' || name.back() == ' ')
    return Wrong(field, "begins or ends with a space; leave it out");
  for (size_t at = 0; at < name.size();) {
    const size_t begin = at;
    uint32_t code = 0;
    if (!NextCodePoint(name, &at, &code)) {
      return Wrong(field, "is not UTF-8 from byte %d on; encode it as UTF-8", begin);
    }
    if (IsControl(code)) {
      return Wrong(field, "has the control character U+%04X at byte %d; leave it out", code, begin);
    }
  }
  return absl::OkStatus();
}

absl::Status CheckBetween(absl::string_view field, int64_t value, int64_t min, int64_t max,
                          absl::string_view next) {
  if (value >= min && value <= max) return absl::OkStatus();
  return Wrong(field, "is %d, outside [%d, %d]; %s", value, min, max, next);
}

absl::Status CheckRef(absl::string_view field, const v1::TensorRef& ref) {
  switch (ref.ref_case()) {
    case v1::TensorRef::kTensorId:
      return CheckIdGiven(absl::StrCat(field, ".tensor_id"), ref.tensor_id());
    case v1::TensorRef::kName: return CheckName(absl::StrCat(field, ".name"), ref.name());
    case v1::TensorRef::REF_NOT_SET: break;
  }
  return Wrong(field, "names no tensor; set its tensor_id or its name");
}

absl::Status CheckMesh(absl::string_view field, const v1::Mesh& mesh) {
  AGMM_RETURN_IF_ERROR(CheckBetween(absl::StrCat(field, ".axes"), mesh.axes_size(), 1, kMaxMeshAxes,
                                    "give the axes, such as x=4"));
  std::vector<absl::string_view> names;
  int64_t size = 1;
  for (int i = 0; i < mesh.axes_size(); ++i) {
    const v1::MeshAxis& axis = mesh.axes(i);
    const std::string here = absl::StrFormat("%s.axes[%d]", field, i);
    AGMM_RETURN_IF_ERROR(CheckLength(absl::StrCat(here, ".name"), axis.name(), kMaxAxisNameBytes));
    if (axis.name().empty() || !std::all_of(axis.name().begin(), axis.name().end(), [](char c) {
          return absl::ascii_isalpha(static_cast<unsigned char>(c));
        })) {
      return Wrong(here,
                   "has a name that is empty or not of letters only; use one such as x or tp");
    }
    if (std::find(names.begin(), names.end(), axis.name()) != names.end())
      return Wrong(here, "is called %s, as one before; give each its own name", axis.name());
    names.push_back(axis.name());
    AGMM_RETURN_IF_ERROR(CheckBetween(absl::StrCat(here, ".size"), axis.size(), 1, kMaxRanks,
                                      "give the number of ranks along it"));
    size *= axis.size();
    if (size > kMaxRanks) {
      return Wrong(field,
                   "has %d ranks up to axis %s; at most %d can be planned for; make it smaller",
                   size, axis.name(), kMaxRanks);
    }
  }
  if (mesh.ranks().empty()) return absl::OkStatus();
  if (mesh.ranks_size() != size) {
    return Wrong(field, "has %d ranks and lists %d; list one for each, or none", size,
                 mesh.ranks_size());
  }
  std::vector<int> ranks(mesh.ranks().begin(), mesh.ranks().end());
  std::sort(ranks.begin(), ranks.end());
  if (ranks.front() < 0) return Wrong(field, "lists rank %d; ranks begin at 0", ranks.front());
  if (const auto twice = std::adjacent_find(ranks.begin(), ranks.end()); twice != ranks.end())
    return Wrong(field, "lists rank %d twice; list each once", *twice);
  return absl::OkStatus();
}

absl::Status CheckSpec(absl::string_view field, const v1::TensorSpec& spec) {
  for (auto [name, size] : {std::pair{"rows", spec.rows()}, {"cols", spec.cols()}}) {
    AGMM_RETURN_IF_ERROR(CheckBetween(absl::StrCat(field, ".", name), size, 1, kMaxDimension,
                                      "a matrix has at least one row and one column"));
  }
  const absl::StatusOr<DType> dtype = FromProto(spec.dtype());
  if (!dtype.ok()) return Wrong(absl::StrCat(field, ".dtype"), "%s", dtype.status().message());
  // Both factors are at most kMaxDimension: no overflow.
  const int64_t bytes = spec.rows() * spec.cols() * SizeOf(*dtype);
  if (bytes > kMaxTensorBytes) {
    return Wrong(field, "is %d x %d, %d bytes; at most %d are taken; split it", spec.rows(),
                 spec.cols(), bytes, kMaxTensorBytes);
  }
  AGMM_RETURN_IF_ERROR(CheckGiven(absl::StrCat(field, ".sharding"), spec.sharding()));
  AGMM_RETURN_IF_ERROR(
      CheckLength(absl::StrCat(field, ".sharding"), spec.sharding(), kMaxNotationBytes));
  AGMM_RETURN_IF_ERROR(CheckMesh(absl::StrCat(field, ".mesh"), spec.mesh()));
  // The notation's parser says what is wrong with a sharding.
  return FromProto(spec).status();
}

absl::Status CheckOptions(absl::string_view field, const v1::PlanOptions& options) {
  // The planner checks which names exist.
  AGMM_RETURN_IF_ERROR(CheckId(absl::StrCat(field, ".algorithm"), options.algorithm()));
  AGMM_RETURN_IF_ERROR(
      CheckLength(absl::StrCat(field, ".split"), options.split(), kMaxNotationBytes));
  AGMM_RETURN_IF_ERROR(CheckBetween(absl::StrCat(field, ".workspace_shard_count"),
                                    options.workspace_shard_count(), 0, kMaxChunks,
                                    "leave it at 0 to have room for all"));
  for (const auto& [name, count] : {std::pair(".chunk_count", options.chunk_count()),
                                    {".k_chunk_count", options.k_chunk_count()}}) {
    AGMM_RETURN_IF_ERROR(CheckBetween(absl::StrCat(field, name), count, 0, kMaxChunks,
                                      "leave it at 0 to have it chosen"));
  }
  return absl::OkStatus();
}

absl::Status CheckTimeout(absl::string_view field, const google::protobuf::Duration& timeout) {
  const int64_t seconds = timeout.seconds(), nanos = timeout.nanos();
  const bool whole = nanos >= 0 && nanos < 1000000000;
  if (whole && seconds >= 0 &&
      (seconds < kMaxTimeoutSeconds || (seconds == kMaxTimeoutSeconds && nanos == 0))) {
    return absl::OkStatus();
  }
  return Wrong(
      field,
      "is %d s and %d ns; at most %d s are taken, nanoseconds in [0, 999999999]; 0 is the default",
      seconds, nanos, kMaxTimeoutSeconds);
}

}  // namespace agmm
