#include "kernels/cpu/cpu_gemm.h"

#include <omp.h>

#include <algorithm>
#include <cstdlib>
#include <exception>
#include <new>
#include <utility>

#include "absl/cleanup/cleanup.h"
#include "absl/strings/match.h"
#include "absl/strings/str_format.h"
#include "kernels/base/failpoint.h"
#include "kernels/base/large_pages.h"
#include "kernels/base/status.h"
#include "kernels/base/units.h"
#include "kernels/cpu/onednn.h"
#include "kernels/cpu/tiles.h"

namespace agmm {
namespace {

constexpr int64_t kCacheLine = 64;
// A packed B always has the layout for a full piece, because it must not depend on which matmul
// packs first.
constexpr int64_t kLayoutRows = 128;

// The only engine of the process, because execution fails with a second one.
const dnnl::engine& Engine() {
  static const dnnl::engine* const engine = new dnnl::engine(dnnl::engine::kind::cpu, 0);
  return *engine;
}

dnnl::memory::data_type ToDnnl(DType dtype) {
  return dtype == DType::kBF16 ? dnnl::memory::data_type::bf16 : dnnl::memory::data_type::f32;
}

// Calls `function` with one OpenMP thread, because oneDNN plans a primitive for as many threads as
// its creator has.
template <typename Function>
auto WithOneThread(Function function) {
  const int threads = omp_get_max_threads();
  omp_set_num_threads(1);
  absl::Cleanup restore = [threads] { omp_set_num_threads(threads); };
  return function();
}

dnnl::matmul::primitive_desc Describe(const Matmul::Key& key, const dnnl::memory::desc& weights) {
  const auto input = ToDnnl(InputOf(key.kernel));
  const dnnl::memory::desc a({key.m, key.k}, input, {key.k, 1});
  const dnnl::memory::desc c({key.m, key.n}, ToDnnl(key.out), {key.n, 1});
  dnnl::primitive_attr attributes;
  attributes.set_scratchpad_mode(dnnl::scratchpad_mode::user);
  if (key.add) {
    dnnl::post_ops sum;
    sum.append_sum(1.0f);
    attributes.set_post_ops(sum);
  }
  return DescribeMatmul(Engine(), a, weights, c, attributes);
}

// Throws if oneDNN has no such matmul.
dnnl::matmul::primitive_desc FullPiece(int64_t n, int64_t k, GemmKernel kernel) {
  const dnnl::memory::desc any({k, n}, ToDnnl(InputOf(kernel)), dnnl::memory::format_tag::any);
  return Describe({kLayoutRows, n, k, kernel, DType::kF32, false}, any);
}

// Returns true if oneDNN multiplies faster in bf16 than in f32. AMD processors with bf16
// instructions do twice as many products a cycle in bf16. Intel's do as many in both (NOTES.md).
bool BF16IsFast() {
#if defined(__x86_64__)
  return __builtin_cpu_is("amd") &&
         absl::StrContains(OneDnnCode(GemmKernel::kBF16), "avx512_core_bf16");
#else
  return false;
#endif
}

GemmKernel KernelForBF16() {
  if (Has(GemmKernel::kTiles)) return GemmKernel::kTiles;
  return BF16IsFast() ? GemmKernel::kBF16 : GemmKernel::kF32;
}

}  // namespace

DType InputOf(GemmKernel kernel) { return kernel == GemmKernel::kF32 ? DType::kF32 : DType::kBF16; }

std::string OneDnnCode(GemmKernel kernel) {
  return WithOneThread([&]() -> std::string {
    try {
      return FullPiece(64, 64, kernel).impl_info_str();
    } catch (const dnnl::error&) {
      return "";
    }
  });
}

bool Has(GemmKernel kernel) {
  // If oneDNN has AMX kernels, then the processor has AMX, and ONEDNN_MAX_CPU_ISA allows it.
  static const std::string bf16 = OneDnnCode(GemmKernel::kBF16);
  static const bool tiles = absl::StrContains(bf16, "amx") && AskForTiles();
  switch (kernel) {
    case GemmKernel::kF32: return true;
    case GemmKernel::kBF16: return !bf16.empty();
    case GemmKernel::kTiles: return tiles;
  }
  return false;
}

GemmKernel KernelFor(DType dtype) {
  static const GemmKernel bf16 = KernelForBF16();
  return dtype == DType::kBF16 ? bf16 : GemmKernel::kF32;
}

std::string GemmDescription() {
  const dnnl_version_t* version = dnnl_version();
  std::string text = absl::StrFormat("oneDNN %d.%d.%d (%s), bf16 ", version->major, version->minor,
                                     version->patch, OneDnnCode(GemmKernel::kF32));
  const GemmKernel kernel = KernelFor(DType::kBF16);
  absl::StrAppend(&text, kernel == GemmKernel::kTiles  ? "by AMX tiles"
                         : kernel == GemmKernel::kBF16 ? "by oneDNN"
                                                       : "widened to f32");
  if (!Has(GemmKernel::kBF16)) absl::StrAppend(&text, " (oneDNN has no bf16 on this processor)");
  return text;
}

Scratch::~Scratch() { std::free(data_); }

std::byte* Scratch::Get(int64_t bytes) {
  if (bytes > bytes_) {
    bytes = RoundUp(bytes, kCacheLine);
    auto* const data = static_cast<std::byte*>(
        AGMM_FAILPOINT("scratch.none") ? nullptr : std::aligned_alloc(kCacheLine, bytes));
    if (data == nullptr) throw std::bad_alloc();
    std::free(std::exchange(data_, data));
    bytes_ = bytes;
    ++allocations_;
  }
  return data_;
}

GemmWorker::GemmWorker(int index) : index(index), stream(Engine()) { omp_set_num_threads(1); }

bool ScratchNeed::Cover(const ScratchNeed& other) {
  const ScratchNeed before = *this;
  a = std::max(a, other.a);
  c = std::max(c, other.c);
  scratchpad = std::max(scratchpad, other.scratchpad);
  return a > before.a || c > before.c || scratchpad > before.scratchpad;
}

void GemmWorker::Reserve(const ScratchNeed& need) {
  a.Get(need.a);
  c.Get(need.c);
  scratchpad.Get(need.scratchpad);
}

Matmul::Matmul(const Key& key)
    : key_(key),
      scratchpad_bytes_(TileProduct{key.m, key.n, key.k}.ScratchBytes()),
      packed_layout_({PackedTileBytes(key.n, key.k)}, dnnl::memory::data_type::u8,
                     dnnl::memory::format_tag::a) {}

Matmul::Matmul(const Key& key, const dnnl::matmul::primitive_desc& desc, int workers)
    : key_(key),
      scratchpad_bytes_(std::max<int64_t>(desc.scratchpad_desc().get_size(), 1)),
      packed_layout_(desc.weights_desc()),
      primitive_(desc) {
  for (int worker = 0; worker < workers; ++worker) {
    arguments_.push_back({dnnl::memory(desc.src_desc(), Engine(), DNNL_MEMORY_NONE),
                          dnnl::memory(desc.dst_desc(), Engine(), DNNL_MEMORY_NONE),
                          dnnl::memory(desc.scratchpad_desc(), Engine(), DNNL_MEMORY_NONE)});
  }
}

absl::Status Matmul::Run(ConstMatrix a, const PackedB& b, Matrix c, GemmWorker& worker) const {
  if (key_.kernel != GemmKernel::kTiles) return Execute(a.data, b, c.data, worker);
  MultiplyTiles({key_.m, key_.n, key_.k, key_.add}, a,
                static_cast<const std::byte*>(b.memory.get_data_handle()), c,
                worker.scratchpad.Get(scratchpad_bytes_));
  return absl::OkStatus();
}

absl::Status Matmul::Execute(const std::byte* a, const PackedB& b, std::byte* c,
                             GemmWorker& worker) const {
  Arguments& arguments = arguments_[worker.index];
  try {
    arguments.a.set_data_handle(const_cast<std::byte*>(a));
    arguments.c.set_data_handle(c);
    arguments.scratchpad.set_data_handle(worker.scratchpad.Get(scratchpad_bytes_));
    // Uses the C function, because its argument list needs no map.
    const dnnl_exec_arg_t list[] = {{DNNL_ARG_SRC, arguments.a.get()},
                                    {DNNL_ARG_WEIGHTS, b.memory.get()},
                                    {DNNL_ARG_DST, arguments.c.get()},
                                    {DNNL_ARG_SCRATCHPAD, arguments.scratchpad.get()}};
    dnnl::error::wrap_c_api(dnnl_primitive_execute(primitive_.get(), worker.stream.get(), 4, list),
                            "matmul");
    worker.stream.wait();
  } catch (const dnnl::error& error) {
    return absl::InternalError(absl::StrFormat("oneDNN failed to multiply %d x %d x %d: %s", key_.m,
                                               key_.n, key_.k, error.what()));
  }
  return absl::OkStatus();
}

PackedB Matmul::PackedAt(std::byte* memory) const {
  return {dnnl::memory(packed_layout_, Engine(), memory), packed_bytes()};
}

int64_t Matmul::widened_bytes(DType dtype) const {
  const DType input = InputOf(key_.kernel);
  return dtype == input ? 0 : key_.k * key_.n * SizeOf(input);
}

absl::StatusOr<PackedB> Matmul::Pack(ConstMatrix b, GemmWorker& worker) const {
  Scratch widened;
  PackedB packed;
  try {
    packed = {dnnl::memory(packed_layout_, Engine()), packed_bytes()};
    if (key_.kernel == GemmKernel::kTiles)
      PreferLargePages(static_cast<std::byte*>(packed.memory.get_data_handle()), packed.bytes);
  } catch (const std::exception& error) {
    return NotPacked(b, error);
  }
  AGMM_RETURN_IF_ERROR(PackAgain(b, worker, widened, packed));
  return packed;
}

absl::Status Matmul::PackAgain(ConstMatrix b, GemmWorker& worker, Scratch& widened,
                               PackedB& packed) const {
  const int64_t n = key_.n, k = key_.k;
  const DType input = InputOf(key_.kernel);
  const int64_t element_bytes = SizeOf(input);
  try {
    if (b.dtype != input) {
      const Matrix wide{widened.Get(widened_bytes(b.dtype)), n * element_bytes, input};
      CopyRows(b, wide, k, n);
      b = wide;
    }
    if (key_.kernel == GemmKernel::kTiles) {
      PackTiles(b, n, k, static_cast<std::byte*>(packed.memory.get_data_handle()));
      return absl::OkStatus();
    }
    const dnnl::memory::desc plain({k, n}, ToDnnl(input), {b.pitch_bytes / element_bytes, 1});
    dnnl::memory from(plain, Engine(), const_cast<std::byte*>(b.data));
    dnnl::reorder(from, packed.memory).execute(worker.stream, from, packed.memory);
    worker.stream.wait();
    return absl::OkStatus();
  } catch (const std::exception& error) {  // oneDNN's, or no memory
    return NotPacked(b, error);
  }
}

absl::Status Matmul::NotPacked(ConstMatrix b, const std::exception& error) const {
  return absl::ResourceExhaustedError(absl::StrFormat(
      "B of %d x %d %s could not be packed into %s: %s", key_.k, key_.n, Name(b.dtype),
      FormatBytes(packed_bytes()),
      dynamic_cast<const std::bad_alloc*>(&error) != nullptr ? "out of memory" : error.what()));
}

absl::StatusOr<std::shared_ptr<const Matmul>> GemmLibrary::Get(const Matmul::Key& key) {
  std::lock_guard lock(mutex_);
  std::weak_ptr<const Matmul>& known = matmuls_[key];
  if (auto held = known.lock()) return held;
  std::erase_if(matmuls_,
                [&](const auto& entry) { return entry.first != key && entry.second.expired(); });
  if (key.kernel == GemmKernel::kTiles) {
    std::shared_ptr<const Matmul> made(new Matmul(key));
    known = made;
    return made;
  }
  try {
    return WithOneThread([&] {
      const dnnl::memory::desc layout = FullPiece(key.n, key.k, key.kernel).weights_desc();
      std::shared_ptr<const Matmul> made(new Matmul(key, Describe(key, layout), workers_));
      known = made;
      return made;
    });
  } catch (const dnnl::error& error) {
    return absl::UnimplementedError(
        absl::StrFormat("oneDNN has no matmul of %d x %d x %d in %s to %s here: %s", key.m, key.n,
                        key.k, Name(InputOf(key.kernel)), Name(key.out), error.what()));
  }
}

}  // namespace agmm
