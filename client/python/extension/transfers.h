// Puts and gets, from memory or through callables that move blocks.
#pragma once

#include <nanobind/nanobind.h>

#include <cstdint>
#include <stop_token>
#include <string>

#include "agmm/agmm.h"
#include "extension/connected.h"

namespace agmm::python {

// The memory [pointer, pointer + size_bytes) must live until the call returns.
// progress(moved_bytes, total_bytes) may be None. It and the callables run on any thread. An
// exception of theirs ends the transfer, and the call raises it.
nanobind::tuple Put(const Connected& self, const std::string& name, const TensorSpec& spec,
                    uintptr_t pointer, int64_t size_bytes, nanobind::object progress,
                    int64_t timeout_ms, std::stop_source stop);
nanobind::tuple Get(const Connected& self, const std::string& name, uintptr_t pointer,
                    int64_t size_bytes, nanobind::object progress, int64_t timeout_ms,
                    std::stop_source stop);

// block(offset_bytes, memoryview) fills the view, or reads it. Later blocks use its memory again.
nanobind::tuple PutBlocks(const Connected& self, const std::string& name, const TensorSpec& spec,
                          nanobind::callable block, nanobind::object progress, int64_t timeout_ms,
                          std::stop_source stop);
nanobind::tuple GetBlocks(const Connected& self, const std::string& name, nanobind::callable block,
                          nanobind::object progress, int64_t timeout_ms, std::stop_source stop);

}  // namespace agmm::python
