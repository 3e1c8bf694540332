#include <nanobind/nanobind.h>
#include <nanobind/stl/string.h>

#include <memory>
#include <string>
#include <utility>

#include "agmm/agmm.h"
#include "extension/await.h"
#include "extension/bindings.h"
#include "extension/fields.h"
#include "extension/mapped.h"
#include "extension/raise.h"

namespace nb = nanobind;

namespace agmm::python {

Mapped::Mapped(Mapping mapping) : mapping_(std::make_shared<Mapping>(std::move(mapping))) {}

Mapped::~Mapped() {
  if (Ended()) {
    static_cast<void>(new std::shared_ptr<Mapping>(std::move(mapping_)));
    return;
  }
  const ReleasedGil released;
  mapping_.reset();
}

nb::tuple Mapped::tensor() const { return FieldsOf(mapping_->tensor()); }

nb::list Mapped::shards() const {
  nb::list list;
  for (const Mapping::Shard& shard : mapping_->shards()) {
    list.append(nb::make_tuple(shard.rank, shard.row_begin, shard.row_end, shard.col_begin,
                               shard.col_end, shard.pitch_bytes,
                               reinterpret_cast<uintptr_t>(shard.data)));
  }
  return list;
}

bool Mapped::detached() const { return mapping_->detached(); }

std::string Mapped::status() const { return mapping_->status().message(); }

void Mapped::Detach() {
  if (Ended()) return;
  const Call call;
  const auto detach = [mapping = mapping_] {
    mapping->Detach();
    return Status();
  };
  if (CallAndWait(detach).ok()) return;
  const ReleasedGil released;
  mapping_->Detach();
}

void Mapped::GiveBack() {
  const ReleasedGil released;
  mapping_->GiveBack();
}

nb::tuple Mapped::Commit(int64_t timeout_ms) {
  return FieldsOf(ValueOf(CallAndWait(
      [mapping = mapping_, timeout_ms] { return mapping->Commit(Milliseconds(timeout_ms)); })));
}

nb::tuple Mapped::Release(int64_t timeout_ms) {
  return FieldsOf(ValueOf(CallAndWait(
      [mapping = mapping_, timeout_ms] { return mapping->Release(Milliseconds(timeout_ms)); })));
}

nb::tuple Mapped::Renew(int64_t timeout_ms) {
  const auto renew = [mapping = mapping_, timeout_ms] {
    return mapping->Renew(Milliseconds(timeout_ms));
  };
  // Else a lease that arrives later would delay others until the mapping is dropped.
  const auto end = [this](auto&) {
    const ReleasedGil released;
    mapping_->Detach();
  };
  return FieldsOf(ValueOf(CallAndWait(renew, end)));
}

void BindMapping(nb::module_& module) {
  nb::class_<Mapped>(module, "Mapping")
      .def_prop_ro("tensor", &Mapped::tensor)
      .def_prop_ro("shards", &Mapped::shards)
      .def_prop_ro("detached", &Mapped::detached)
      .def_prop_ro("status", &Mapped::status)
      .def("detach", &Mapped::Detach)
      .def("give_back", &Mapped::GiveBack, nb::call_guard<Call>())
      .def("commit", &Mapped::Commit, nb::arg("timeout_ms"), nb::call_guard<Call>())
      .def("release", &Mapped::Release, nb::arg("timeout_ms"), nb::call_guard<Call>())
      .def("renew", &Mapped::Renew, nb::arg("timeout_ms"), nb::call_guard<Call>());
}

}  // namespace agmm::python
