#include "kernels/cpu/cpu_gemm.h"

#include <omp.h>

#include <algorithm>
#include <cstdlib>
#include <new>
#include <utility>

#include "absl/cleanup/cleanup.h"
#include "absl/strings/match.h"
#include "absl/strings/str_format.h"
#include "kernels/base/failpoint.h"
#include "kernels/base/large_pages.h"
#include "kernels/base/status.h"
#include "kernels/base/units.h"
#include "kernels/cpu/tiles.h"

namespace agmm {
namespace {

constexpr int64_t kCacheLine = 64;
// The layout of a packed B must not depend on who asks first, so it is chosen for a full piece
// always.
constexpr int64_t kLayoutRows = 128;

// The only engine of the process: with a second one, execution fails.
const dnnl::engine& Engine() {
  static const dnnl::engine* const engine = new dnnl::engine(dnnl::engine::kind::cpu, 0);
  return *engine;
}

dnnl::memory::data_type ToDnnl(DType dtype) {
  return dtype == DType::kBF16 ? dnnl::memory::data_type::bf16 : dnnl::memory::data_type::f32;
}

// oneDNN plans a primitive for as many threads as OpenMP would give its creator.
template <typename Function>
auto WithOneThread(Function function) {
  const int threads = omp_get_max_threads();
  omp_set_num_threads(1);
  absl::Cleanup restore = [threads] { omp_set_num_threads(threads); };
  return function();
}

dnnl::matmul::primitive_desc Describe(const Matmul::Key& key, const dnnl::memory::desc& weights) {
  const auto input = ToDnnl(key.dtype);
  const dnnl::memory::desc a({key.m, key.k}, input, {key.k, 1});
  const dnnl::memory::desc c({key.m, key.n}, ToDnnl(key.out), {key.n, 1});
  dnnl::primitive_attr attributes;
  attributes.set_scratchpad_mode(dnnl::scratchpad_mode::user);
  if (key.add) {
    dnnl::post_ops sum;
    sum.append_sum(1.0f);
    attributes.set_post_ops(sum);
  }
  return dnnl::matmul::primitive_desc(dnnl::matmul::desc(a, weights, c), attributes, Engine());
}

// Throws where there is no such matmul.
dnnl::matmul::primitive_desc FullPiece(int64_t n, int64_t k, DType compute) {
  const dnnl::memory::desc any({k, n}, ToDnnl(compute), dnnl::memory::format_tag::any);
  return Describe({kLayoutRows, n, k, compute, DType::kF32, false}, any);
}

bool MultipliesBF16() {
  static const bool can = WithOneThread([] {
    try {
      FullPiece(64, 64, DType::kBF16);
      return true;
    } catch (const dnnl::error&) {
      return false;
    }
  });
  return can;
}

absl::Status LibraryError(const dnnl::error& error, const Matmul::Key& key) {
  return absl::UnimplementedError(
      absl::StrFormat("oneDNN has no matmul of %d x %d x %d in %s to %s here: %s", key.m, key.n,
                      key.k, Name(key.dtype), Name(key.out), error.what()));
}

}  // namespace

DType ComputeDType(DType dtype) {
  return dtype == DType::kBF16 && MultipliesBF16() ? DType::kBF16 : DType::kF32;
}

bool MultipliesAnyPitch(DType compute) {
  // Where oneDNN would take kernels with AMX: it has looked at the processor, and can be told to do
  // without. Those kernels add up few rows in another order.
  static const bool tiles =
      MultipliesBF16() && WithOneThread([] {
        return absl::StrContains(FullPiece(64, 64, DType::kBF16).impl_info_str(), "amx") &&
               AskForTiles();
      });
  return compute == DType::kBF16 && tiles;
}

bool RowsSumAlike() {
  static const bool alike = WithOneThread(
      [] { return absl::StartsWith(FullPiece(64, 64, DType::kF32).impl_info_str(), "brg"); });
  return alike;
}

std::string GemmDescription() {
  const dnnl_version_t* version = dnnl_version();
  const char* isa = "generic";
  switch (dnnl::get_effective_cpu_isa()) {
    case dnnl::cpu_isa::sse41: isa = "sse41"; break;
    case dnnl::cpu_isa::avx: isa = "avx"; break;
    case dnnl::cpu_isa::avx2: isa = "avx2"; break;
    case dnnl::cpu_isa::avx2_vnni: isa = "avx2_vnni"; break;
    case dnnl::cpu_isa::avx512_core: isa = "avx512"; break;
    case dnnl::cpu_isa::avx512_core_vnni: isa = "avx512_vnni"; break;
    case dnnl::cpu_isa::avx512_core_bf16: isa = "avx512_bf16"; break;
    case dnnl::cpu_isa::avx512_core_amx: isa = "avx512_amx"; break;
    default: break;
  }
  return absl::StrFormat("oneDNN %d.%d.%d, %s", version->major, version->minor, version->patch,
                         isa);
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
      tiles_(true),
      scratchpad_bytes_(TileProduct{key.m, key.n, key.k}.ScratchBytes()),
      packed_layout_({PackedTileBytes(key.n, key.k)}, dnnl::memory::data_type::u8,
                     dnnl::memory::format_tag::a) {}

Matmul::Matmul(const Key& key, const dnnl::matmul::primitive_desc& desc, int workers)
    : key_(key),
      tiles_(false),
      scratchpad_bytes_(std::max<int64_t>(desc.scratchpad_desc().get_size(), 1)),
      packed_layout_(desc.weights_desc()),
      primitive_(desc) {
  for (int worker = 0; worker < workers; ++worker) {
    arguments_.push_back({dnnl::memory(desc.src_desc(), Engine(), DNNL_MEMORY_NONE),
                          dnnl::memory(desc.dst_desc(), Engine(), DNNL_MEMORY_NONE),
                          dnnl::memory(desc.scratchpad_desc(), Engine(), DNNL_MEMORY_NONE)});
  }
}

ScratchNeed Matmul::Need() const {
  ScratchNeed need;
  need.scratchpad = scratchpad_bytes_;
  return need;
}

absl::Status Matmul::Run(ConstMatrix a, const PackedB& b, Matrix c, GemmWorker& worker) const {
  if (!tiles_) return Execute(a.data, b, c.data, worker);
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
    // The C call, for its argument list needs no map.
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

absl::StatusOr<PackedB> Matmul::Pack(ConstMatrix b, GemmWorker& worker) const {
  const int64_t n = key_.n, k = key_.k;
  const int64_t element_bytes = SizeOf(key_.dtype);
  const auto refusal = [&](const char* why) {
    return absl::ResourceExhaustedError(
        absl::StrFormat("B of %d x %d %s could not be packed into %s: %s", k, n, Name(b.dtype),
                        FormatBytes(packed_layout_.get_size()), why));
  };
  Scratch converted;
  try {
    if (b.dtype != key_.dtype) {
      const Matrix wide{converted.Get(k * n * element_bytes), n * element_bytes, key_.dtype};
      CopyRows(b, wide, k, n);
      b = wide;
    }
    if (tiles_) {
      PackedB packed{dnnl::memory(packed_layout_, Engine()),
                     static_cast<int64_t>(packed_layout_.get_size())};
      auto* const to = static_cast<std::byte*>(packed.memory.get_data_handle());
      PreferLargePages(to, packed.bytes);
      PackTiles(b, n, k, to);
      return packed;
    }
    const dnnl::memory::desc plain({k, n}, ToDnnl(key_.dtype), {b.pitch_bytes / element_bytes, 1});
    dnnl::memory from(plain, Engine(), const_cast<std::byte*>(b.data));
    PackedB packed{dnnl::memory(packed_layout_, Engine()),
                   static_cast<int64_t>(packed_layout_.get_size())};
    dnnl::reorder(from, packed.memory).execute(worker.stream, from, packed.memory);
    worker.stream.wait();
    return packed;
  } catch (const dnnl::error& error) {
    return refusal(error.what());
  } catch (const std::bad_alloc&) {
    return refusal("no memory");
  }
}

absl::StatusOr<std::shared_ptr<const Matmul>> GemmLibrary::Get(const Matmul::Key& key) {
  std::lock_guard lock(mutex_);
  auto [it, added] = matmuls_.try_emplace(key);
  if (auto held = it->second.lock()) return held;
  std::erase_if(matmuls_,
                [&](const auto& entry) { return entry.first != key && entry.second.expired(); });
  if (MultipliesAnyPitch(key.dtype)) {
    std::shared_ptr<const Matmul> made(new Matmul(key));
    it->second = made;
    return made;
  }
  try {
    return WithOneThread([&] {
      const dnnl::memory::desc layout = FullPiece(key.n, key.k, key.dtype).weights_desc();
      std::shared_ptr<const Matmul> made(new Matmul(key, Describe(key, layout), workers_));
      it->second = made;
      return made;
    });
  } catch (const dnnl::error& error) {
    return LibraryError(error, key);
  }
}

}  // namespace agmm
