#include "kernels/predict/step_usage.h"

#include <variant>

#include "kernels/schedule/index.h"

namespace agmm {
namespace {

void AddUsage(Resource resource, double ns, Activity* activity) {
  if (ns <= 0) return;
  for (Usage& usage : activity->usages) {
    if (usage.resource != resource) continue;
    usage.ns += ns;
    return;
  }
  activity->usages.push_back({resource, ns});
}

double FlopsOf(const Multiply& multiply, const Problem& problem) {
  const Range& k = Along(problem, multiply.a.operand, multiply.a, Dim::kK);
  return 2.0 * static_cast<double>(multiply.c.rows.size()) *
         static_cast<double>(multiply.c.cols.size()) * static_cast<double>(k.size());
}

// The bytes that a multiply reads and writes. A sum that is not finished stays in f32.
double TrafficOf(const Multiply& multiply) {
  Place sum;
  sum.dtype = DType::kF32;
  double bytes = BytesOf(multiply.a, multiply.a_place) + BytesOf(multiply.b, multiply.b_place);
  if (multiply.accumulate) bytes += BytesOf(multiply.c, sum);
  return bytes + BytesOf(multiply.c, multiply.finish ? multiply.out : sum);
}

bool IsDense(const Block& block, const Place& place) {
  return place.pitch_bytes == block.cols.size() * SizeOf(place.dtype);
}

// The bytes that a CPU device copies for a multiply, because its products take dense rows and end
// in f32 or in their input's type: rows of A out of wider ones, a sum so far, and the result.
double CopiedBytesOf(const Multiply& multiply) {
  const bool finish = multiply.finish, accumulate = multiply.accumulate;
  const double a_bytes =
      IsDense(multiply.a, multiply.a_place) ? 0 : BytesOf(multiply.a, multiply.a_place);
  Place sum;
  sum.dtype = DType::kF32;
  const double sum_bytes = BytesOf(multiply.c, sum);
  if (!finish && !multiply.acc.has_value()) return a_bytes;  // stays on the chip
  const Place& result = finish ? multiply.out : *multiply.acc;
  const bool is_native = result.dtype == DType::kF32 || result.dtype == multiply.a_place.dtype;
  if (IsDense(multiply.c, result) && (!finish || (is_native && !accumulate))) return a_bytes;
  const double in = accumulate && multiply.acc.has_value() ? sum_bytes : 0;
  const bool is_made = finish && !accumulate && is_native;
  return a_bytes + in + (is_made ? BytesOf(multiply.c, result) : sum_bytes);
}

}  // namespace

double ResidentBytes(const Problem& problem) {
  double bytes = 0;
  for (const Tensor& tensor : problem.tensors)
    bytes += static_cast<double>(ShardBytes(problem.mesh, tensor));
  return bytes;
}

double BytesOf(const Block& block, const Place& place) {
  if (block.empty()) return 0;
  return static_cast<double>(block.rows.size()) * static_cast<double>(block.cols.size()) *
         static_cast<double>(SizeOf(place.dtype));
}

const Path& StepUsage::AddPath(Rank from, Rank to, double bytes, Activity* activity) {
  const Path& path = network_.Between(from, to);
  for (const Path::Hop& hop : path.hops) {
    const double late_bytes = bytes - network_.TakeBurst(hop, bytes);
    AddUsage(hop.resource, late_bytes / hop.bytes_per_ns, activity);
  }
  AddUsage(network_.Memory(from), bytes / device_.memory, activity);
  AddUsage(network_.Memory(to), bytes / device_.memory, activity);
  if (path.is_message) {
    AddUsage(network_.Cores(from), device_.message_ns + bytes * device_.send_ns_per_byte, activity);
    AddUsage(network_.Cores(to), device_.message_ns + bytes * device_.receive_ns_per_byte,
             activity);
  }
  return path;
}

void StepUsage::AddAccess(const Block& block, const Place& place, Rank rank, Activity* activity) {
  const double bytes = BytesOf(block, place);
  if (place.rank == rank) {
    AddUsage(network_.Memory(rank), bytes / device_.memory, activity);
  } else {
    AddPath(place.rank, rank, bytes, activity);
  }
}

// The rank of the step moves the bytes within a node, and each place gets them by a way of its own.
void StepUsage::Add(const Transfer& transfer, Rank rank, std::vector<Activity>* activities) {
  const double bytes = BytesOf(transfer.block, transfer.from);
  for (int i = 0; i < static_cast<int>(transfer.to.size()); ++i) {
    const Rank from = transfer.from.rank, to = transfer.to[i].rank;
    Activity& activity = activities->emplace_back();
    if (to != rank) activity.to = i;
    if (from == to) {
      AddUsage(network_.Memory(from), 2 * bytes / device_.memory, &activity);
      AddUsage(network_.Cores(rank), bytes * device_.copy_ns_per_byte, &activity);
      continue;
    }
    const Path& path = AddPath(from, to, bytes, &activity);
    if (path.by_cores) AddUsage(network_.Cores(rank), bytes * device_.copy_ns_per_byte, &activity);
    if (to != rank) activity.latency_ns = path.latency_ns;
  }
}

void StepUsage::Add(const Multiply& multiply, Rank rank, std::vector<Activity>* activities) {
  Activity& activity = activities->emplace_back();
  const DType dtype = multiply.a_place.dtype;
  double cores = ProductNs(device_, dtype, FlopsOf(multiply, problem_), TrafficOf(multiply));
  // Short rows, which caches hardly speed up.
  cores += CopiedBytesOf(multiply) * copy_ns_per_byte_;
  const Place& b = multiply.b_place;
  // CPU devices keep the packed block for this multiply alone.
  if (b.buffer == kWorkspace) cores += BytesOf(multiply.b, b) * device_.pack_ns_per_byte;
  AddUsage(network_.Cores(rank), cores, &activity);
  ForEachPlace(StepOp(multiply), [&](const Block& block, const Place& place, Use) {
    AddAccess(block, place, rank, &activity);
  });
}

void StepUsage::Add(const Reduce& reduce, Rank rank, std::vector<Activity>* activities) {
  Activity& activity = activities->emplace_back();
  double bytes = 0;
  for (const Place& from : reduce.from) bytes += BytesOf(reduce.c, from);
  AddUsage(network_.Cores(rank), bytes * device_.copy_ns_per_byte, &activity);
  ForEachPlace(StepOp(reduce), [&](const Block& block, const Place& place, Use) {
    AddAccess(block, place, rank, &activity);
  });
}

void StepUsage::Of(const Step& step, Rank rank, std::vector<Activity>* activities) {
  activities->clear();
  std::visit([&](const auto& op) { Add(op, rank, activities); }, step.op);
}

}  // namespace agmm
