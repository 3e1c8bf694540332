#include "extension/callback.h"

namespace nb = nanobind;

namespace agmm::python {

Callbacks::~Callbacks() {
  if (!callables_.is_valid() && error_ == nullptr) return;
  const nb::detail::cleanup_guard guard;
  if (guard) {
    callables_.reset();
    error_ = nullptr;
  } else {
    static_cast<void>(callables_.release());
    static_cast<void>(new std::exception_ptr(std::move(error_)));
  }
}

bool Callbacks::Run(const std::function<void(nb::handle)>& call) {
  const nb::gil_scoped_acquire acquired;
  if (!acquired.is_valid() || !callables_.is_valid() || error_ != nullptr) return false;
  const bool outer = std::exchange(InCallback(), true);
  try {
    call(callables_);
  } catch (...) {
    error_ = std::current_exception();
  }
  InCallback() = outer;
  return error_ == nullptr;
}

void Callbacks::End() {
  const nb::gil_scoped_acquire acquired;
  if (!acquired.is_valid()) return;
  const bool outer = std::exchange(InCallback(), true);
  callables_.reset();
  InCallback() = outer;
}

void Callbacks::RaiseAny() {
  if (error_ == nullptr) return;
  std::rethrow_exception(std::exchange(error_, nullptr));
}

}  // namespace agmm::python
