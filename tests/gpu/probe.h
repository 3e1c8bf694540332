// One check of the driver: a function in a table, run in a process of its own.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "tests/gpu/scratch.h"

// The environment of a check: GPU 0 and, if there is one, GPU 1.
class Probe : public GpuScratch {
 public:
  // The first failure of a check counts.
  void Failed(const std::string& call, CUresult result) override;
  void Fail(const std::string& why);
  void Expect(bool holds, const std::string& why) {
    if (!holds) Fail(why);
  }
  void Expect(CUresult result, CUresult wanted, const std::string& call);

  std::string Name(CUresult result) const;
  // The value of an attribute of GPU 0.
  int Attribute(CUdevice_attribute which);
  // A function of the driver that the CUDA device does not use; null if the driver lacks it.
  template <typename Function>
  Function* Find(const char* name) {
    void* function = nullptr;
    CUdriverProcAddressQueryResult status = CU_GET_PROC_ADDRESS_SUCCESS;
    if (cu.cuGetProcAddress(name, &function, CUDA_VERSION, 0, &status) != CUDA_SUCCESS) {
      return nullptr;
    }
    return reinterpret_cast<Function*>(function);
  }

  bool two_gpus() const { return contexts.size() > 1; }
  // Records why this check does not apply here; the check then returns.
  void Skip(const std::string& why) { skipped = why; }

  // A kernel of tests/gpu/probe.cu.
  CUfunction Kernel(const char* name);
  void Launch(const char* name, int blocks, int threads, CUstream stream, void** arguments);

  bool model = false;            // the device says so
  bool abandoned = false;        // ends without releasing anything, which may hang
  std::string failure, skipped;  // empty: none
  std::string text;              // what a fact or a `may` shows
  CUlibrary kernel_library = nullptr;
};

struct ProbeCheck {
  enum Kind { kMust, kMay, kFact };  // a fact is measured, never on the model
  Kind kind = kMust;
  const char* name = "";
  const char* what = "";
  void (*run)(Probe&) = nullptr;
};

// The tables, one a file.
std::vector<ProbeCheck> EventChecks();
std::vector<ProbeCheck> MemoryChecks();
std::vector<ProbeCheck> ProductChecks();
std::vector<ProbeCheck> KernelChecks();
std::vector<ProbeCheck> Measurements();
std::vector<ProbeCheck> SignalChecks();
std::vector<ProbeCheck> LostChecks();
