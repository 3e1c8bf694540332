// Status plumbing: early returns on errors, and context for their messages.
#pragma once

#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"

#define AGMM_CONCAT_INNER(a, b) a##b
#define AGMM_CONCAT(a, b) AGMM_CONCAT_INNER(a, b)

// Returns the status of `expr` from the enclosing function if it is an error.
#define AGMM_RETURN_IF_ERROR(expr)                                                \
  do {                                                                            \
    if (absl::Status agmm_status = (expr); !agmm_status.ok()) return agmm_status; \
  } while (false)

// Declares or assigns `lhs` from the StatusOr `expr`, or returns its error.
#define AGMM_ASSIGN_OR_RETURN(lhs, expr) \
  AGMM_ASSIGN_OR_RETURN_INNER(AGMM_CONCAT(agmm_or_, __LINE__), lhs, expr)
#define AGMM_ASSIGN_OR_RETURN_INNER(tmp, lhs, expr) \
  auto tmp = (expr);                                \
  if (!tmp.ok()) return tmp.status();               \
  lhs = std::move(tmp).value()

namespace agmm {

// `status` with another message; payloads pass through unchanged.
inline absl::Status WithMessage(const absl::Status& status, absl::string_view message) {
  absl::Status changed(status.code(), message);
  status.ForEachPayload(
      [&](absl::string_view url, const absl::Cord& payload) { changed.SetPayload(url, payload); });
  return changed;
}

// `status` with "`context`: " in front of its message; OK passes through unchanged.
inline absl::Status Annotate(const absl::Status& status, absl::string_view context) {
  if (status.ok()) return status;
  return WithMessage(status, absl::StrCat(context, ": ", status.message()));
}

}  // namespace agmm
