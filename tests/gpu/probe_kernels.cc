// cuda_probe: the kernels of kernels/cuda give the bits of their bodies on the host.
#include <cstring>
#include <memory>

#include "kernels/base/fill.h"
#include "kernels/cuda/kernels.h"
#include "tests/gpu/probe.h"

namespace {

namespace body = agmm::elementwise;
using agmm::DType;

constexpr DType kTypes[] = {DType::kF32, DType::kBF16, DType::kF16};
// Wider and higher than the grid of a launch, so that its threads continue in strides.
constexpr int64_t kWide[2] = {3, 70000}, kHigh[2] = {8200, 9}, kSmall[2] = {5, 33};

const char* Text(DType type) { return agmm::TraitsOf(type).name; }

// A matrix on GPU 0 and its copy on the host.
struct Twins {
  body::Matrix device, host;
  int64_t rows = 0, cols = 0;
  size_t bytes() const { return rows * host.pitch_bytes; }
};

uint32_t Bits(const body::Matrix& matrix, int64_t row, int64_t col) {
  uint32_t bits = 0;
  std::memcpy(&bits, body::ElementOf(matrix, row, col), agmm::SizeOf(matrix.dtype));
  return bits;
}

class TwinRuns {
 public:
  explicit TwinRuns(Probe& probe) : probe_(probe) {
    const auto driver = agmm::OpenDriver();
    if (!driver.ok()) {
      probe.Fail(std::string(driver.status().message()));
      return;
    }
    kernels_ = std::make_unique<agmm::Kernels>(**driver);
    probe.Check("loading the kernels", kernels_->Load());
    stream_ = probe.Stream();
  }
  ~TwinRuns() {
    if (kernels_) kernels_->Unload();
  }

  bool ready() const { return kernels_ && probe_.failure.empty(); }

  // Fills with any bits: with all values of a 16-bit type if there are enough elements, and for f32
  // also with values between two values of a 16-bit type.
  Twins Make(DType type, const int64_t (&shape)[2]) {
    Twins twins = {{}, {}, shape[0], shape[1]};
    const int64_t pitch = (shape[1] * agmm::SizeOf(type) + 127) / 128 * 128;
    twins.host = {nullptr, pitch, type};
    twins.host.data = probe_.Host(twins.bytes());
    twins.device = {reinterpret_cast<void*>(probe_.Device(twins.bytes())), pitch, type};
    auto* const words = static_cast<uint32_t*>(twins.host.data);
    constexpr uint32_t kLow[] = {0, 1, 0x0fff, 0x1000, 0x1001, 0x7fff, 0x8000, 0x8001};
    for (size_t i = 0; i < twins.bytes() / 4; ++i) {
      const auto random = static_cast<uint32_t>(agmm::MixFill(++seed_));
      if (type != DType::kF32) {
        words[i] = static_cast<uint32_t>((2 * i + 1) % 65536 << 16 | 2 * i % 65536);
      } else {
        words[i] = i % 2 ? random : (random & 0xffff0000) | kLow[random % 8];
      }
    }
    probe_.Check("cuMemcpyHtoDAsync", probe_.cu.cuMemcpyHtoDAsync(Address(twins), twins.host.data,
                                                                  twins.bytes(), stream_));
    return twins;
  }

  template <typename Work>
  void Run(const Work& device, const Work& host) {
    probe_.Check("cuLaunchKernel", kernels_->Launch(device, stream_));
    probe_.Check("cuStreamSynchronize", probe_.cu.cuStreamSynchronize(stream_));
    for (int64_t row = 0; row < host.rows; ++row) {
      for (int64_t col = 0; col < host.cols; ++col) body::Element(host, row, col);
    }
  }

  // Compares all bytes, including those between the rows. `any_nan` accepts any NaN, because sums
  // that are NaN have other bits on a GPU.
  void Compare(const Twins& twins, const std::string& what, bool any_nan = false) {
    body::Matrix got = twins.host;
    got.data = probe_.Host(twins.bytes());
    probe_.Check("cuMemcpyDtoHAsync",
                 probe_.cu.cuMemcpyDtoHAsync(got.data, Address(twins), twins.bytes(), stream_));
    probe_.Check("cuStreamSynchronize", probe_.cu.cuStreamSynchronize(stream_));
    const int64_t all_cols = twins.host.pitch_bytes / agmm::SizeOf(twins.host.dtype);
    int64_t wrong = 0;
    std::string first;
    for (int64_t row = 0; row < twins.rows; ++row) {
      for (int64_t col = 0; col < all_cols; ++col) {
        const uint32_t bits = Bits(got, row, col), wanted = Bits(twins.host, row, col);
        if (bits == wanted) continue;
        const float value = body::Load(got, row, col), sum = body::Load(twins.host, row, col);
        if (any_nan && value != value && sum != sum) continue;
        if (wrong++ == 0) {
          char text[96];
          std::snprintf(text, sizeof text, "row %ld, column %ld is %x instead of %x",
                        static_cast<long>(row), static_cast<long>(col), bits, wanted);
          first = text;
        }
      }
    }
    probe_.Expect(wrong == 0, what + ": " + std::to_string(wrong) + " elements differ; " + first);
  }

 private:
  static CUdeviceptr Address(const Twins& twins) {
    return reinterpret_cast<CUdeviceptr>(twins.device.data);
  }

  Probe& probe_;
  std::unique_ptr<agmm::Kernels> kernels_;
  CUstream stream_ = nullptr;
  uint64_t seed_ = 0;
};

void ConvertsAlike(Probe& probe) {
  TwinRuns kernels(probe);
  const auto convert = [&](DType from_type, DType to_type, const int64_t(&shape)[2]) {
    if (!kernels.ready()) return;
    const Twins from = kernels.Make(from_type, shape), to = kernels.Make(to_type, shape);
    kernels.Run(body::Convert{from.device, to.device, from.rows, from.cols},
                body::Convert{from.host, to.host, from.rows, from.cols});
    kernels.Compare(to, std::string(Text(from_type)) + " to " + Text(to_type));
  };
  for (DType type : kTypes) {
    convert(type, type, kSmall);
    if (type == DType::kF32) continue;
    convert(type, DType::kF32, kWide);
    convert(DType::kF32, type, kWide);
  }
  convert(DType::kF32, DType::kBF16, kHigh);
}

void ReducesAlike(Probe& probe) {
  TwinRuns kernels(probe);
  const auto reduce = [&](DType from_type, const DType* out_type, const int64_t(&shape)[2]) {
    if (!kernels.ready()) return;
    const Twins from = kernels.Make(from_type, shape), into = kernels.Make(DType::kF32, shape);
    Twins out;
    if (out_type) out = kernels.Make(*out_type, shape);
    const Twins& to = out_type ? out : into;
    kernels.Run(body::Reduce{{into.device, from.device}, 2, to.device, from.rows, from.cols},
                body::Reduce{{into.host, from.host}, 2, to.host, from.rows, from.cols});
    const std::string what = std::string("sums of ") + Text(from_type);
    kernels.Compare(to, out_type ? what + " as " + Text(*out_type) : what, true);
  };
  for (DType from : kTypes) {
    reduce(from, nullptr, kSmall);
    for (DType out : kTypes) reduce(from, &out, kSmall);
  }
  reduce(DType::kF32, &kTypes[1], kWide);
  reduce(DType::kF32, &kTypes[2], kHigh);
}

void FillsAlike(Probe& probe) {
  TwinRuns kernels(probe);
  const auto fill = [&](DType type, const agmm::FillSpec& spec, const int64_t(&shape)[2]) {
    if (!kernels.ready()) return;
    const Twins to = kernels.Make(type, shape);
    body::Fill work = {to.host, to.rows, to.cols, spec};
    work.most = agmm::LargestBelowOne(type);
    work.first_index = (int64_t{1} << 33) + 5;  // a shard's rows are not the tensor's
    work.index_stride = 70007;
    body::Fill on_device = work;
    on_device.to = to.device;
    kernels.Run(on_device, work);
    kernels.Compare(
        to, std::string(Text(type)) + ", kind " + std::to_string(static_cast<int>(spec.kind)));
  };
  for (DType type : kTypes) {
    fill(type, {agmm::FillKind::kUniform, 7}, kWide);
    fill(type, {agmm::FillKind::kIntegers, 8}, kHigh);
    fill(type, {agmm::FillKind::kConstant, 0, 1.0 / 3}, kSmall);
  }
}

}  // namespace

std::vector<ProbeCheck> KernelChecks() {
  constexpr auto kMust = ProbeCheck::kMust;
  return {
      {kMust, "kernel.convert", "has the bits of its body on the host", ConvertsAlike},
      {kMust, "kernel.reduce", "the same, except those of sums that are NaN", ReducesAlike},
      {kMust, "kernel.fill", "the same", FillsAlike},
  };
}
