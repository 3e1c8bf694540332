#include "extension/callback.h"

#include <cxxabi.h>

namespace nb = nanobind;

namespace agmm::python {

Callbacks::~Callbacks() {
  if (!callables_.is_valid() && error_ == nullptr) return;
  const TakenGil taken;
  const CallbackScope scope;  // perhaps on a thread of the client that these keep
  if (taken.is_valid()) {
    callables_.reset();
    error_ = nullptr;
  } else {
    static_cast<void>(callables_.release());
    static_cast<void>(new std::exception_ptr(std::move(error_)));
  }
}

bool Callbacks::Run(const std::function<void(nb::handle)>& call) {
  const TakenGil taken;
  if (!taken.is_valid() || !callables_.is_valid() || error_ != nullptr) return false;
  const CallbackScope scope;
  try {
    call(callables_);
  } catch (const abi::__forced_unwind&) {
    StayForever();  // the interpreter has ended in the callable
  } catch (...) {
    error_ = std::current_exception();
  }
  return error_ == nullptr;
}

void Callbacks::End() {
  const TakenGil taken;
  if (!taken.is_valid()) return;
  callables_.reset();
  error_ = nullptr;
}

void Callbacks::RaiseAny() {
  if (error_ == nullptr) return;
  std::rethrow_exception(std::exchange(error_, nullptr));
}

}  // namespace agmm::python
