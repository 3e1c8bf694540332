#include "tests/gpu/sm90_gpu.h"

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>

#include "absl/strings/str_cat.h"
#include "kernels/base/fill.h"
#include "kernels/base/units.h"
#include "kernels/cuda/driver.h"

// The fat binary of product.cu.
asm(".section .rodata\n.balign 64\nsm90_bench_image: .incbin \"" AGMM_SM90_BENCH_FATBIN
    "\"\n.previous\n");
extern "C" const char sm90_bench_image[];

namespace agmm::sm90 {
namespace {

// Work of this program takes milliseconds on a GPU, and seconds on a model.
constexpr auto kLimit = std::chrono::seconds(20), kModelLimit = std::chrono::seconds(120);

// Written within some 400 us on a GPU.
constexpr int64_t kHeldBytes = int64_t{1} << 30, kModelHeldBytes = 1 << 12;

// Returns the power of two, at most 128, that divides the addresses of all rows.
int AlignmentOf(const DeviceMatrix& matrix) {
  return static_cast<int>(std::min<CUdeviceptr>(matrix.at & -matrix.at, 128));
}

template <typename T>
T OrDie(absl::StatusOr<T> value) {
  if (!value.ok()) Die(value.status().ToString());
  return *std::move(value);
}

}  // namespace

void Die(const std::string& why) {
  std::fprintf(stderr, "sm90_bench: %s\n", why.c_str());
  std::fflush(nullptr);
  std::_Exit(1);
}

std::string HopperGpu::Start() {
  if (const std::string error = Open("libcuda.so.1", 1); !error.empty()) Die(error);
  char name[128] = {};
  int major = 0, minor = 0;
  Check("cuDeviceGetName", cu.cuDeviceGetName(name, sizeof name, 0));
  name_ = name;
  const auto attribute = [&](CUdevice_attribute which, int* value) {
    Check("cuDeviceGetAttribute", cu.cuDeviceGetAttribute(value, which, 0));
  };
  attribute(CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR, &major);
  attribute(CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR, &minor);
  attribute(CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT, &sms_);
  if (major != 9 || minor != 0) {
    return absl::StrCat(name_, " has compute capability ", major, ".", minor,
                        "; the kernels are for 9.0");
  }
  control_ = Stream();
  aborts_ = Stream();
  for (int rank = 0; rank < kMostRanks; ++rank) {
    products_.push_back(Stream());
    copies_.push_back(Stream());
  }
  compared_ = Event();
  abort_set_ = Event();
  held_ = Device(is_model() ? kModelHeldBytes : kHeldBytes);
  workspace_ = Device(kGemmWorkspaceBytes);
  abort_ = Device(sizeof(uint64_t));
  abort_values_ = Host<uint64_t>(2);
  abort_values_[0] = 0, abort_values_[1] = 1;
  SetAbort(false);
  kernels_ = std::make_unique<Kernels>(*OrDie(OpenDriver()));
  Check("loading elementwise.cu", kernels_->Load());
  gemm_ = OrDie(CudaGemm::Create("GPU 0"));
  Check("cuLibraryLoadData", cu.cuLibraryLoadData(&library_, sm90_bench_image, nullptr, nullptr, 0,
                                                  nullptr, nullptr, 0));
  return "";
}

void HopperGpu::Finish() {
  if (control_ != nullptr) Check("cuStreamSynchronize", cu.cuStreamSynchronize(control_));
  if (library_ != nullptr) Check("cuLibraryUnload", cu.cuLibraryUnload(library_));
  if (kernels_ != nullptr) kernels_->Unload();
  kept_.clear();
  gemm_.reset();
  Close();
}

void HopperGpu::Failed(const std::string& call, CUresult result) {
  const char* name = nullptr;
  cu.cuGetErrorName(result, &name);
  Die(absl::StrCat(call, ": ", name != nullptr ? name : std::to_string(result).c_str()));
}

DeviceMatrix HopperGpu::Make(int64_t rows, int64_t cols, DType dtype, int64_t offset) {
  const int64_t before = offset * SizeOf(dtype);
  DeviceMatrix matrix = {0, rows, cols, RoundUp(before + cols * SizeOf(dtype), 128), dtype};
  matrix.at = Device(before + matrix.bytes()) + before;
  return matrix;
}

void HopperGpu::Fill(const DeviceMatrix& matrix, FillKind kind, uint64_t seed, int64_t first_index,
                     CUstream stream) {
  const elementwise::Fill fill = {
      .to = {reinterpret_cast<void*>(matrix.at), matrix.pitch_bytes, matrix.dtype},
      .rows = matrix.rows,
      .cols = matrix.cols,
      .fill = {.kind = kind, .seed = seed},
      .most = LargestBelowOne(matrix.dtype),
      .first_index = first_index,
      .index_stride = matrix.cols};
  Check("agmm_fill", kernels_->Launch(fill, stream));
}

void HopperGpu::Poison(const DeviceMatrix& matrix, CUstream stream) {
  if (matrix.rows == 0) return;
  Check("cuMemsetD8Async", cu.cuMemsetD8Async(matrix.at, 0xff, matrix.bytes(), stream));
}

// A map begins at a multiple of 16 bytes, and the matrix at one of its columns.
View HopperGpu::Map(const DeviceMatrix& matrix, int box_rows, Arguments& arguments, int number) {
  const int64_t element = SizeOf(matrix.dtype), before = matrix.at % 16;
  const View view = {number, static_cast<int>(before / element)};
  const cuuint64_t dims[] = {static_cast<cuuint64_t>(view.x + matrix.cols),
                             static_cast<cuuint64_t>(matrix.rows)},
                   strides[] = {static_cast<cuuint64_t>(matrix.pitch_bytes)};
  const cuuint32_t box[] = {static_cast<cuuint32_t>(kStageBytesOfK / element),
                            static_cast<cuuint32_t>(box_rows)},
                   steps[] = {1, 1};
  const auto type = matrix.dtype == DType::kF16 ? CU_TENSOR_MAP_DATA_TYPE_FLOAT16
                                                : CU_TENSOR_MAP_DATA_TYPE_BFLOAT16;
  Check("cuTensorMapEncodeTiled",
        cu.cuTensorMapEncodeTiled(
            &arguments.maps[number], type, 2, reinterpret_cast<void*>(matrix.at - before), dims,
            strides, box, steps, CU_TENSOR_MAP_INTERLEAVE_NONE, CU_TENSOR_MAP_SWIZZLE_128B,
            CU_TENSOR_MAP_L2_PROMOTION_NONE, CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE));
  return view;
}

CUfunction HopperGpu::Function(const ProductConfig& config) {
  CUfunction& function = functions_[config.kernel];
  if (function != nullptr) return function;
  CUkernel kernel = nullptr;
  Check(config.kernel, cu.cuLibraryGetKernel(&kernel, library_, config.kernel.c_str()));
  Check("cuKernelGetFunction", cu.cuKernelGetFunction(&function, kernel));
  Check("cuFuncSetAttribute",
        cu.cuFuncSetAttribute(function, CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES,
                              config.shared_bytes));
  return function;
}

void HopperGpu::Launch(const ProductConfig& config, const Arguments& arguments, CUstream stream) {
  if (const absl::Status status = CheckArguments(arguments, config); !status.ok())
    Die(status.ToString());
  void* parameters[] = {const_cast<Arguments*>(&arguments)};
  Check(config.kernel, cu.cuLaunchKernel(Function(config), config.ctas, 1, 1, kThreads, 1, 1,
                                         config.shared_bytes, stream, parameters, nullptr));
}

void HopperGpu::Multiply(const DeviceMatrix& a, const DeviceMatrix& b, const DeviceMatrix& c,
                         CUstream stream) {
  const auto product = OrDie(gemm_->Get({.m = a.rows,
                                         .n = b.cols,
                                         .k = a.cols,
                                         .a_pitch = a.pitch_bytes,
                                         .b_pitch = b.pitch_bytes,
                                         .c_pitch = c.pitch_bytes,
                                         .a_alignment = AlignmentOf(a),
                                         .b_alignment = AlignmentOf(b),
                                         .c_alignment = AlignmentOf(c),
                                         .in = a.dtype,
                                         .out = c.dtype}));
  if (std::find(kept_.begin(), kept_.end(), product) == kept_.end()) kept_.push_back(product);
  const cublasStatus_t result = product->Run(a.at, b.at, c.at, workspace_, stream);
  if (result != CUBLAS_STATUS_SUCCESS)
    Die(absl::StrCat("cublasLtMatmul: ", static_cast<int>(result)));
}

void HopperGpu::HoldBack() {
  Check("cuMemsetD8Async",
        cu.cuMemsetD8Async(held_, 0, is_model() ? kModelHeldBytes : kHeldBytes, control_));
}

void HopperGpu::Order(CUstream from, CUevent event, CUstream to) {
  Check("cuEventRecord", cu.cuEventRecord(event, from));
  Check("cuStreamWaitEvent", cu.cuStreamWaitEvent(to, event, 0));
}

void HopperGpu::SetAbort(bool aborted) {
  Check("cuMemcpyHtoDAsync",
        cu.cuMemcpyHtoDAsync(abort_, &abort_values_[aborted], sizeof(uint64_t), aborts_));
  // For what is queued from now on.
  if (!aborted) Order(aborts_, abort_set_, control_);
}

bool HopperGpu::Comes(CUevent event) {
  const auto begin = std::chrono::steady_clock::now();
  while (std::chrono::steady_clock::now() - begin < (is_model() ? kModelLimit : kLimit)) {
    const CUresult result = cu.cuEventQuery(event);
    if (result == CUDA_SUCCESS) return true;
    if (result != CUDA_ERROR_NOT_READY) Failed("cuEventQuery", result);
  }
  return false;
}

void HopperGpu::Await(CUevent event, const std::string& work) {
  if (Comes(event)) return;
  SetAbort(true);
  Die(absl::StrCat(work, " did not end in time; it ", Comes(event) ? "ended" : "did not end either",
                   " once the abort word was set"));
}

double HopperGpu::Microseconds(CUevent begin, CUevent end) {
  float milliseconds = 0;
  Check("cuEventElapsedTime", cu.cuEventElapsedTime(&milliseconds, begin, end));
  return milliseconds * 1e3;
}

int64_t HopperGpu::CountDifferentRows(const DeviceMatrix& one, const DeviceMatrix& other) {
  if (one.bytes() > host_bytes_) {
    host_bytes_ = one.bytes();
    host_ = {Host(host_bytes_), Host(host_bytes_)};
  }
  Check("get", cu.cuMemcpyDtoHAsync(host_[0], one.at, one.bytes(), control_));
  Check("get", cu.cuMemcpyDtoHAsync(host_[1], other.at, other.bytes(), control_));
  Check("cuEventRecord", cu.cuEventRecord(compared_, control_));
  Await(compared_, "a copy to the host");
  int64_t different = 0;
  for (int64_t row = 0; row < one.rows; ++row) {
    const int64_t at = row * one.pitch_bytes;
    different += std::memcmp(host_[0] + at, host_[1] + at, one.cols * SizeOf(one.dtype)) != 0;
  }
  return different;
}

}  // namespace agmm::sm90
