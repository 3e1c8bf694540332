// Finds the library's function that one of tests/tsan with the same name replaces.
#pragma once

#include <dlfcn.h>

#include <cstdio>
#include <cstdlib>
#include <cstring>

// Works for functions and member functions: the first word of a pointer to either is the address of
// the function.
template <typename Function>
Function Next(Function ours) {
  void* address = nullptr;
  std::memcpy(&address, &ours, sizeof(address));
  Dl_info info = {};
  const bool named = dladdr(address, &info) != 0 && info.dli_sname != nullptr;
  void* const theirs = named ? dlsym(RTLD_NEXT, info.dli_sname) : nullptr;
  if (theirs == nullptr) {
    std::fprintf(stderr, "there is no other %s; tests/tsan must be linked before its library\n",
                 named ? info.dli_sname : "function of this name");
    std::abort();
  }
  std::memcpy(&ours, &theirs, sizeof(theirs));
  return ours;
}
