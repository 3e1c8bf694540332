#include "kernels/cuda/cuda_program.h"

#include <algorithm>
#include <map>
#include <utility>

#include "absl/algorithm/container.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "kernels/base/malloc_bytes.h"
#include "kernels/base/status.h"
#include "kernels/base/units.h"

namespace agmm {
namespace {

// Returns the largest power of two that divides the address of a place, at most the alignment of
// all buffers.
int AlignmentOf(const HeapPlace& place) {
  const int64_t bits = place.offset_bytes | kRowAlignBytes;
  return static_cast<int>(bits & -bits);
}

bool SamePlace(const HeapPlace& a, const HeapPlace& b) {
  return a.rank == b.rank && a.buffer == b.buffer && a.offset_bytes == b.offset_bytes;
}

class CudaLowering {
 public:
  CudaLowering(const RankPlan& plan, const std::vector<CudaPeer>& peers)
      : plan_(plan), peers_(peers) {}

  absl::StatusOr<CudaProgram> Run() {
    AGMM_ASSIGN_OR_RETURN(LoweredRank lowered, LowerRank(plan_));
    program_.slots = lowered.slots;
    program_.chip_bytes.resize(lowered.lanes.size(), 0);
    program_.multiplies.resize(lowered.lanes.size(), false);
    std::string not_carried;
    const std::vector<KernelSteps> kernels = FindKernelSteps(plan_, peers_, &not_carried);
    kernels_ = kernels[plan_.peers.self];
    program_.group = RanksOfGroup(*plan_.schedule, kernels);
    if (!absl::c_linear_search(program_.group, plan_.peers.self)) program_.group.clear();
    LaunchUnits launch = MakeLaunchUnits(plan_, lowered, peers_, kernels);
    program_.units = std::move(launch.units);
    program_.lanes = std::move(launch.lanes);
    program_.unit_of_step = std::move(launch.unit_of_step);
    program_.polled = std::move(launch.polled);
    program_.relays = RelayLanes(plan_.steps(), plan_.peers.self);
    for (LoweredStep& from : lowered.steps) {
      CudaStep step{std::move(static_cast<StepEdges&>(from)), {}};
      const absl::Status status = std::visit([&](auto& op) { return Lower(op, &step); }, from.op);
      if (!status.ok())
        return Annotate(status, plan_.StepName(static_cast<int>(program_.steps.size())));
      program_.steps.push_back(std::move(step));
    }
    FindBegins();
    DescribeProducts(not_carried);
    return std::move(program_);
  }

 private:
  absl::Status Lower(CopyOp& op, CudaStep* step) {
    CudaCopy copy{std::move(op), {}};
    AGMM_RETURN_IF_ERROR(Reach(copy.from));
    copy.row_bytes = copy.cols * SizeOf(copy.from.dtype);
    for (const HeapPlace& to : copy.to) {
      copy.ways.push_back(to.heap == nullptr           ? CudaCopy::Way::kSend
                          : !peers_[to.rank].reachable ? CudaCopy::Way::kThrough
                                                       : CudaCopy::Way::kDirect);
      if (copy.ways.back() != CudaCopy::Way::kDirect)
        copy.staged_bytes = copy.rows * copy.row_bytes;
      AddPath(copy.ways.back(), to);
    }
    program_.staged_bytes = std::max(program_.staged_bytes, copy.staged_bytes);
    AddTime(0, copy.rows * copy.row_bytes * static_cast<int64_t>(1 + copy.to.size()));
    step->op = std::move(copy);
    return absl::OkStatus();
  }

  absl::Status Lower(MultiplyOp& op, CudaStep* step) {
    CudaMultiply multiply{std::move(op)};
    AGMM_RETURN_IF_ERROR(Reach(multiply.a));
    AGMM_RETURN_IF_ERROR(Reach(multiply.b));
    if (multiply.has_acc) AGMM_RETURN_IF_ERROR(Reach(multiply.acc));
    if (multiply.finish) AGMM_RETURN_IF_ERROR(Reach(multiply.out));
    if (!kernels_.computed[program_.steps.size()]) PlaceSum(&multiply);
    ProductShape& shape = multiply.shape;
    shape.m = multiply.rows;
    shape.n = multiply.n;
    shape.k = multiply.k;
    shape.a_pitch = multiply.a.pitch_bytes;
    shape.b_pitch = multiply.b.pitch_bytes;
    shape.a_alignment = AlignmentOf(multiply.a);
    shape.b_alignment = AlignmentOf(multiply.b);
    shape.in = multiply.a.dtype;
    shape.add = multiply.accumulate;
    if (multiply.sum == CudaMultiply::Sum::kChip) {
      shape.c_pitch = ChipPitchBytes(multiply.n);
      shape.c_alignment = kRowAlignBytes;
      int64_t& chip = program_.chip_bytes[step->lane];
      chip = std::max(chip, multiply.rows * shape.c_pitch);
    } else {
      const HeapPlace& sum = multiply.sum == CudaMultiply::Sum::kOut ? multiply.out : multiply.acc;
      shape.c_pitch = sum.pitch_bytes;
      shape.c_alignment = AlignmentOf(sum);
      shape.out = sum.dtype;
    }
    program_.multiplies[step->lane] = true;
    AddTime(2 * multiply.rows * multiply.n * multiply.k, 3 * multiply.rows * shape.c_pitch);
    step->op = std::move(multiply);
    return absl::OkStatus();
  }

  // Products are added to a sum in f32, at the sum's place. A step that finishes does not change
  // `acc`.
  static void PlaceSum(CudaMultiply* op) {
    using Sum = CudaMultiply::Sum;
    if (!op->finish) {
      op->sum = op->has_acc ? Sum::kAcc : Sum::kChip;
      return;
    }
    const bool wide = op->out.dtype == DType::kF32;
    if (!op->accumulate) {
      op->sum = wide || op->out.dtype == op->a.dtype ? Sum::kOut : Sum::kChip;
    } else if (op->has_acc) {
      op->sum = wide ? Sum::kOut : Sum::kChip;
      op->load = !wide || !SamePlace(op->acc, op->out);
    } else {
      op->sum = Sum::kChip;
    }
    op->convert = op->sum == Sum::kChip;
  }

  absl::Status Lower(ReduceOp& op, CudaStep* step) {
    for (HeapPlace& from : op.from) AGMM_RETURN_IF_ERROR(Reach(from));
    if (op.has_acc) AGMM_RETURN_IF_ERROR(Reach(op.acc));
    if (op.finish) AGMM_RETURN_IF_ERROR(Reach(op.out));
    const auto matrices = static_cast<int64_t>(op.from.size()) + 1 + op.accumulate;
    AddTime(0, matrices * op.rows * op.cols * SizeOf(DType::kF32));
    step->op = op;
    return absl::OkStatus();
  }

  static absl::Status Lower(const Join& join, CudaStep* step) {
    step->op = join;
    return absl::OkStatus();
  }

  // Finds the lanes that have to wait for the rank's last epoch themselves.
  void FindBegins() {
    std::map<int, int> lane_of_slot;  // of the steps of this rank that raise them
    for (const Step& step : plan_.steps()) {
      for (const Slot& slot : step.signals)
        if (slot.rank == plan_.peers.self) lane_of_slot[slot.index] = step.lane;
    }
    const auto is_behind_it = [&](const Wait& wait) {
      const auto raised = lane_of_slot.find(wait.slot.index);
      return wait.lag == 0 && raised != lane_of_slot.end() && !program_.relays[raised->second];
    };
    for (size_t lane = 0; lane < program_.lanes.size(); ++lane) {
      const std::vector<int>& units = program_.lanes[lane];
      program_.begins.push_back(!program_.relays[lane] && !units.empty() &&
                                absl::c_none_of(program_.units[units[0]].events, is_behind_it));
    }
  }

  void DescribeProducts(const std::string& not_carried) {
    for (const LaunchUnit& unit : program_.units) {
      if (unit.product.has_value()) program_.products.insert(unit.product->config.kernel);
    }
    for (const std::string& why : kernels_.refused) {
      if (!why.empty()) program_.products.insert(absl::StrCat("cuBLASLt: ", why));
    }
    if (!not_carried.empty())
      program_.products.insert(absl::StrCat("copied, not carried: ", not_carried));
  }

  // Records the kind of path between this rank and `place`.
  void AddPath(CudaCopy::Way way, const HeapPlace& place) {
    const bool one_gpu = peers_[place.rank].gpu == peers_[plan_.peers.self].gpu;
    switch (way) {
      case CudaCopy::Way::kDirect:
        if (place.rank != plan_.peers.self)
          program_.paths.insert(one_gpu ? "within a GPU" : "peer access");
        break;
      case CudaCopy::Way::kThrough: program_.paths.insert("through pinned memory"); break;
      case CudaCopy::Way::kSend: program_.paths.insert("staged to the network"); break;
    }
  }

  void AddTime(int64_t operations, int64_t bytes) {
    program_.longest_ns += operations / 1000 + bytes;
  }

  // Checks that the GPU can load a place: an operand of a kernel, or the source of a copy.
  absl::Status Reach(const HeapPlace& place) {
    const CudaPeer& peer = peers_[place.rank];
    if (peer.reachable) {
      AddPath(CudaCopy::Way::kDirect, place);
      return absl::OkStatus();
    }
    return absl::InvalidArgumentError(absl::StrFormat(
        "uses memory of rank %d on GPU %d, to which GPU %d has no peer access; plan with the "
        "islands that the devices report",
        plan_.WorldRank(place.rank), peer.gpu, peers_[plan_.peers.self].gpu));
  }

  const RankPlan& plan_;
  const std::vector<CudaPeer>& peers_;
  KernelSteps kernels_;
  CudaProgram program_;
};

}  // namespace

bool CudaStep::has_messages() const {
  for (size_t part = 0; part < signals.size(); ++part) {
    if (signals[part].executor == nullptr || goes(part, CudaCopy::Way::kSend)) return true;
  }
  return false;
}

int64_t SizeBytes(const CudaProgram& program) {
  int64_t bytes = 0;
  const auto add = [&](const auto& vector) { bytes += MallocBytesOf(vector); };
  add(program.steps);
  for (const CudaStep& step : program.steps) {
    add(step.waits);
    add(step.signals);
    if (const CudaCopy* const copy = step.copy(); copy != nullptr) {
      add(copy->to);
      add(copy->sends);
      add(copy->ways);
    }
    if (const auto* const reduce = std::get_if<ReduceOp>(&step.op); reduce != nullptr)
      add(reduce->from);
  }
  for (const std::vector<int>& lane : program.lanes) add(lane);
  add(program.unit_of_step);
  add(program.group);
  add(program.units);
  for (const LaunchUnit& unit : program.units) {
    add(unit.steps);
    add(unit.waits);
    add(unit.events);
    if (!unit.product.has_value()) continue;
    add(unit.product->blocks);
    add(unit.product->pieces);
  }
  return bytes;
}

int64_t ChipPitchBytes(int64_t n) { return RoundUp(n * SizeOf(DType::kF32), kRowAlignBytes); }

absl::StatusOr<CudaProgram> LowerForCuda(const RankPlan& plan, const std::vector<CudaPeer>& peers) {
  return CudaLowering(plan, peers).Run();
}

}  // namespace agmm
