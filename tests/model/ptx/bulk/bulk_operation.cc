// Bulk copies in flight, piece by piece.
#include <algorithm>
#include <numeric>
#include <tuple>

#include "tests/model/ptx/bulk/bulk.h"
#include "tests/model/ptx/instructions/mbarrier.h"

namespace ptx {
namespace {

using SharedKnowledge = std::shared_ptr<const Knowledge>;

// Pieces move in an order that the seed draws: from any of them on, with a stride that meets all.
class BulkOperation : public AsyncOperation {
 protected:
  BulkOperation(Warp& warp, const Instruction& instruction, const BulkShape& shape,
                SharedKnowledge known)
      : AsyncOperation(*warp.cta),
        warp_(warp),
        instruction_(instruction),
        shape_(shape),
        known_(std::move(known)) {
    World& world = *warp.cta->grid->world;
    const uint32_t pieces = shape.pieces();
    first_ = world.Random(pieces);
    do stride_ = 1 + world.Random(pieces);
    while (std::gcd(stride_, pieces) != 1);
  }

  BulkPiece PieceAt(uint32_t turn) const {
    return shape_.Piece((first_ + uint64_t{turn} * stride_) % shape_.pieces());
  }
  // An access by an agent of its own.
  Access NewAccess(bool write) const {
    Access access = AccessOf(warp_, instruction_, kAllLanes, write);
    std::tie(access.agent, access.clock) = warp_.cta->grid->world->AgentFor(warp_, *known_);
    access.proxy = Proxy::kAsync;
    return access;
  }
  std::byte* Global(const BulkPiece& piece) const {
    return FindGlobal(warp_, piece.global, piece.count, instruction_);
  }
  void TouchGlobal(World& world, const std::byte* at, uint64_t bytes, const Access& access) const {
    world.races.TouchGlobal(reinterpret_cast<uint64_t>(at), bytes, access, *known_);
  }
  // A swizzle moves the chunks of a piece only within the piece.
  void TouchShared(World& world, const SharedPlace& data, const BulkPiece& piece,
                   const Access& access) const {
    world.races.TouchShared(data.cta->cells, data.offset + piece.offset, piece.bytes, access,
                            *known_);
  }
  // Calls function(shared memory, offset in the piece, bytes) for the parts of a piece that lie
  // together.
  template <typename Function>
  void ForChunks(const SharedPlace& data, const BulkPiece& piece, Function function) const {
    const uint32_t begin = data.offset + piece.offset,
                   step = shape_.swizzle() == 0 ? piece.bytes : 16;
    for (uint32_t at = 0; at < piece.bytes; at += step) {
      function(data.cta->shared.data() + Swizzle(begin + at, shape_.swizzle()), at, step);
    }
  }

  Warp& warp_;
  const Instruction& instruction_;
  const BulkShape shape_;
  const SharedKnowledge known_;

 private:
  uint32_t first_ = 0, stride_ = 1;
};

// An mbarrier that counts the bytes of an operation.
struct Completion {
  SharedPlace mbarrier;
  std::string by;
  void Add(World& world, uint32_t bytes, const Knowledge* known) const {
    UpdateMbarrier(world, *mbarrier.cta, mbarrier.offset, -int64_t{bytes}, 0, known, by);
  }
};

// From global memory to the shared memory of one CTA.
class BulkLoad : public BulkOperation {
 public:
  BulkLoad(Warp& warp, const Instruction& instruction, const BulkShape& shape,
           SharedKnowledge known, const SharedPlace& to, const SharedPlace& mbarrier)
      : BulkOperation(warp, instruction, shape, std::move(known)),
        to_(to),
        completion_{mbarrier, PlaceOf(instruction, nullptr)},
        read_(NewAccess(false)),
        write_(read_) {
    write_.write = true;
    ++to_.cta->pending_writes;
  }

  bool Step(World& world) override {
    const BulkPiece piece = PieceAt(next_++);
    std::byte line[kMaxPieceBytes];
    if (piece.count < piece.bytes) shape_.Fill(line, piece.bytes);
    if (piece.count > 0) {
      const std::byte* const from = Global(piece);
      TouchGlobal(world, from, piece.count, read_);
      std::memcpy(line + piece.first, from, piece.count);
    }
    TouchShared(world, to_, piece, write_);
    ForChunks(to_, piece, [&](std::byte* shared, uint32_t at, uint32_t bytes) {
      std::memcpy(shared, line + at, bytes);
    });
    const bool last = next_ == shape_.pieces();
    Knowledge known;
    if (last) {
      known.order.Learn(write_.agent, write_.clock);
      --to_.cta->pending_writes;
    }
    completion_.Add(world, piece.bytes, last ? &known : nullptr);
    return last;
  }

 private:
  const SharedPlace to_;
  const Completion completion_;
  Access read_, write_;
  uint32_t next_ = 0;
};

// From shared memory to elsewhere. A piece is read some time before it is written.
class StagedCopy : public BulkOperation {
 public:
  StagedCopy(Warp& warp, const Instruction& instruction, const BulkShape& shape,
             SharedKnowledge known, const SharedPlace& from, const Reduction& reduction)
      : BulkOperation(warp, instruction, shape, std::move(known)),
        reduction_(reduction),
        from_(from),
        held_(shape.bytes()),
        read_(NewAccess(false)),
        write_(NewAccess(true)) {
    // PTX ISA: each element is combined with .relaxed.gpu.
    if (reduction.active()) write_.scope = Scope::kGpu;
    ++from_.cta->pending_reads;
  }

  bool Step(World& world) override {
    const uint32_t pieces = shape_.pieces();
    const bool may_read = reads_ < pieces, may_write = writes_ < reads_;
    if (may_read && (!may_write || world.Random(2) == 0)) {
      Read(world, PieceAt(reads_++));
      if (reads_ < pieces) return false;
      --from_.cta->pending_reads;
      ReadsEnded(read_);
      ++world.events;
      return false;
    }
    const BulkPiece piece = PieceAt(writes_++);
    const bool last = writes_ == pieces;
    Write(world, piece, held_.data() + piece.offset, write_, last);
    if (last) ++world.events;
    return last;
  }

 protected:
  virtual void ReadsEnded(const Access& read) = 0;
  // `last`: all pieces are written then.
  virtual void Write(World& world, const BulkPiece& piece, const std::byte* data,
                     const Access& write, bool last) = 0;
  void Combine(std::byte* to, const std::byte* from, uint32_t bytes) const {
    if (reduction_.active()) {
      Reduce(reduction_, to, from, bytes);
    } else {
      std::memcpy(to, from, bytes);
    }
  }
  const Access& read() const { return read_; }

 private:
  void Read(World& world, const BulkPiece& piece) {
    TouchShared(world, from_, piece, read_);
    ForChunks(from_, piece, [&](const std::byte* shared, uint32_t at, uint32_t bytes) {
      std::memcpy(held_.data() + piece.offset + at, shared, bytes);
    });
  }

  const Reduction reduction_;
  const SharedPlace from_;
  std::vector<std::byte> held_;
  const Access read_;
  Access write_;
  uint32_t reads_ = 0, writes_ = 0;
};

// From shared to global memory.
class BulkStore : public StagedCopy {
 public:
  BulkStore(Warp& warp, const Instruction& instruction, const BulkShape& shape,
            SharedKnowledge known, const SharedPlace& from, const Reduction& reduction,
            std::vector<std::shared_ptr<AsyncGroup>> groups)
      : StagedCopy(warp, instruction, shape, std::move(known), from, reduction),
        groups_(std::move(groups)) {
    for (const auto& group : groups_) {
      ++group->reads;
      ++group->writes;
    }
  }

  void Follow(const AsyncGroup& group, const std::shared_ptr<AsyncGroup>& copy) {
    const bool found = std::any_of(groups_.begin(), groups_.end(),
                                   [&](const auto& own) { return own.get() == &group; });
    if (found) groups_.push_back(copy);
  }

 protected:
  void ReadsEnded(const Access& read) override {
    for (const auto& group : groups_) {
      --group->reads;
      group->read.order.Learn(read.agent, read.clock);
      group->all.order.Learn(read.agent, read.clock);
    }
  }

  void Write(World& world, const BulkPiece& piece, const std::byte* data, const Access& write,
             bool last) override {
    if (piece.count > 0) {
      std::byte* const to = Global(piece);
      TouchGlobal(world, to, piece.count, write);
      Combine(to, data + piece.first, piece.count);
    }
    if (!last) return;
    // The end of the kernel waits for it, whether or not its thread does.
    cta->grid->at_end.order.Learn(write.agent, write.clock);
    for (const auto& group : groups_) {
      --group->writes;
      group->all.order.Learn(write.agent, write.clock);
      if (world.races.policy.store_completion_fences) {
        group->all.async_global.Learn(write.agent, write.clock);
      }
    }
  }

 private:
  std::vector<std::shared_ptr<AsyncGroup>> groups_;
};

// From shared memory to that of another CTA of the cluster.
class ClusterCopy : public StagedCopy {
 public:
  ClusterCopy(Warp& warp, const Instruction& instruction, const BulkShape& shape,
              SharedKnowledge known, const SharedPlace& from, const SharedPlace& to,
              const SharedPlace& mbarrier, const Reduction& reduction)
      : StagedCopy(warp, instruction, shape, std::move(known), from, reduction),
        to_(to),
        completion_{mbarrier, PlaceOf(instruction, nullptr)} {
    ++to_.cta->pending_writes;
  }

 protected:
  void ReadsEnded(const Access&) override {}

  void Write(World& world, const BulkPiece& piece, const std::byte* data, const Access& write,
             bool last) override {
    TouchShared(world, to_, piece, write);
    Combine(to_.data() + piece.offset, data, piece.bytes);
    Knowledge known;
    if (last) {
      known.order.Learn(read().agent, read().clock);
      known.order.Learn(write.agent, write.clock);
      --to_.cta->pending_writes;
    }
    completion_.Add(world, piece.bytes, last ? &known : nullptr);
  }

 private:
  const SharedPlace to_;
  const Completion completion_;
};

// The data of an operation in shared memory: of a box at a multiple of 128 bytes, else of 16.
SharedPlace FindData(const Warp& warp, const Instruction& instruction, const BulkShape& shape,
                     uint64_t address) {
  const SharedPlace place = FindShared(warp, address, shape.bytes(), instruction);
  const uint32_t multiple = shape.is_box() ? 128 : 16;
  if (place.offset % multiple) {
    Fail(warp, instruction,
         "the data lie at shared offset " + std::to_string(place.offset) +
             ", which is not a multiple of " + std::to_string(multiple));
  }
  return place;
}

SharedPlace FindOwnData(const Warp& warp, const Instruction& instruction, const BulkShape& shape,
                        uint64_t address, const char* what) {
  const SharedPlace place = FindData(warp, instruction, shape, address);
  if (place.cta != warp.cta) {
    Fail(warp, instruction, std::string(what) + " lies in the shared memory of another CTA");
  }
  return place;
}

// An mbarrier in the CTA of the data.
SharedPlace FindCompletion(Warp& warp, const Instruction& instruction, int lane, const Cta& data,
                           uint64_t address) {
  const SharedPlace place = FindShared(warp, address, 8, instruction);
  if (place.cta != &data) {
    Fail(warp, instruction,
         "the data go to CTA " + std::to_string(data.rank) +
             " of the cluster, the mbarrier lies in CTA " + std::to_string(place.cta->rank));
  }
  if (place.offset % 8) Fail(warp, instruction, "an mbarrier is 8-byte aligned");
  const auto object = place.cta->mbarriers.find(place.offset);
  if (object == place.cta->mbarriers.end() || !object->second.live) {
    Fail(warp, instruction,
         "there is no mbarrier at shared offset " + std::to_string(place.offset) + " of CTA " +
             std::to_string(place.cta->rank) + " of the cluster");
  }
  CheckInit(warp, lane, *place.cta, place.offset, instruction);
  return place;
}

SharedKnowledge KnownAtIssue(Warp& warp, uint32_t lanes) {
  return std::make_shared<const Knowledge>(Publish(warp, lanes));
}

uint64_t OffsetIn(uint32_t rank, uint64_t address) {
  return SharedAddress(rank, static_cast<uint32_t>(address) & 0xffffff);
}

}  // namespace

void IssueLoad(Warp& warp, const Instruction& instruction, int lane, const BulkShape& shape,
               uint64_t to, uint64_t mbarrier, uint32_t cta_mask) {
  World& world = *warp.cta->grid->world;
  const SharedKnowledge known = KnownAtIssue(warp, 1u << lane);
  world.counts.bulk_loaded_bytes += shape.bytes();
  const auto start = [&](const SharedPlace& data, uint64_t mbarrier_address) {
    const SharedPlace object = FindCompletion(warp, instruction, lane, *data.cta, mbarrier_address);
    world.counts.bulk_bytes += shape.bytes();
    world.Add(std::make_unique<BulkLoad>(warp, instruction, shape, known, data, object));
  };
  if (!(instruction.flags & kMulticast)) {
    start(instruction.flags & kOwnCta ? FindOwnData(warp, instruction, shape, to, "the destination")
                                      : FindData(warp, instruction, shape, to),
          mbarrier);
    return;
  }
  FindShared(warp, to, shape.bytes(), instruction);
  const size_t ctas = warp.cta->cluster->ctas.size();
  if (cta_mask == 0 || cta_mask >> ctas) {
    Fail(warp, instruction,
         "the mask of CTAs is " + std::to_string(cta_mask) + "; the cluster has " +
             std::to_string(ctas));
  }
  // Each destination is an operation of its own, because the CTAs see the end of theirs only.
  for (uint32_t rank = 0; rank < ctas; ++rank) {
    if (!(cta_mask >> rank & 1)) continue;
    start(FindData(warp, instruction, shape, OffsetIn(rank, to)), OffsetIn(rank, mbarrier));
  }
}

void IssueStore(Warp& warp, const Instruction& instruction, uint32_t lanes, const BulkShape& shape,
                uint64_t from, const Reduction& reduction) {
  World& world = *warp.cta->grid->world;
  const SharedPlace data = FindOwnData(warp, instruction, shape, from, "the source");
  world.counts.bulk_bytes += shape.bytes();
  world.counts.bulk_stored_bytes += shape.bytes();
  world.Add(std::make_unique<BulkStore>(warp, instruction, shape, KnownAtIssue(warp, lanes), data,
                                        reduction, OpenGroups(warp, lanes)));
}

void IssueClusterCopy(Warp& warp, const Instruction& instruction, int lane, const BulkShape& shape,
                      uint64_t from, uint64_t to, uint64_t mbarrier, const Reduction& reduction) {
  World& world = *warp.cta->grid->world;
  const SharedPlace source = FindOwnData(warp, instruction, shape, from, "the source");
  const SharedPlace data = FindData(warp, instruction, shape, to);
  if (data.cta == warp.cta) {
    Fail(warp, instruction, "the destination must lie in another CTA of the cluster");
  }
  const SharedPlace object = FindCompletion(warp, instruction, lane, *data.cta, mbarrier);
  world.counts.bulk_bytes += shape.bytes();
  world.Add(std::make_unique<ClusterCopy>(warp, instruction, shape, KnownAtIssue(warp, 1u << lane),
                                          source, data, object, reduction));
}

void FollowGroup(AsyncOperation& operation, const AsyncGroup& group,
                 const std::shared_ptr<AsyncGroup>& copy) {
  if (auto* const store = dynamic_cast<BulkStore*>(&operation)) store->Follow(group, copy);
}

}  // namespace ptx
