// Whole files of tensors.
#pragma once

#include <nanobind/nanobind.h>

#include <cstdint>
#include <map>
#include <stop_token>
#include <string>
#include <vector>

#include "agmm/agmm.h"
#include "extension/connected.h"

namespace agmm::python {

// A path has the bytes of the file system, which need not be UTF-8.
// progress(moved_bytes, total_bytes) may be None. It runs on another thread; if it raises, the call
// raises the same.
nanobind::tuple Load(const Connected& self, nanobind::bytes path, std::vector<LoadRule> rules,
                     bool strict, nanobind::object progress, int64_t timeout_ms,
                     std::stop_source stop);
nanobind::list Save(const Connected& self, nanobind::bytes path, std::vector<std::string> names,
                    std::map<std::string, std::string> metadata, nanobind::object progress,
                    int64_t timeout_ms, std::stop_source stop);

}  // namespace agmm::python
