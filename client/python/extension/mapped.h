// A mapping as Python holds it.
#pragma once

#include <nanobind/nanobind.h>

#include <cstdint>
#include <memory>
#include <string>

#include "agmm/agmm.h"

namespace agmm::python {

// The memory stays until this object is destroyed: as NaNs while the mapping is detached. Its
// functions require the GIL.
class Mapped {
 public:
  explicit Mapped(Mapping mapping);
  ~Mapped();
  Mapped(const Mapped&) = delete;

  nanobind::tuple tensor() const;
  // A list of (rank, row_begin, row_end, col_begin, col_end, pitch_bytes, address).
  nanobind::list shards() const;
  bool detached() const;
  std::string status() const;  // why it is detached
  // Waits for a commit in progress. An interrupt ends the wait; the mapping ends all the same.
  void Detach();
  // Ends a mapping to which nothing was written: the contents stay.
  void GiveBack();
  // Return the tensor. An interrupted renewal ends the mapping.
  nanobind::tuple Commit(int64_t timeout_ms);
  nanobind::tuple Release(int64_t timeout_ms);
  nanobind::tuple Renew(int64_t timeout_ms);

 private:
  std::shared_ptr<Mapping> mapping_;
};

}  // namespace agmm::python
