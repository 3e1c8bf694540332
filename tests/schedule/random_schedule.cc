#include "tests/schedule/random_schedule.h"

#include <algorithm>
#include <iterator>
#include <map>
#include <set>
#include <utility>
#include <vector>

#include "kernels/schedule/index.h"
#include "kernels/schedule/plan.h"
#include "tests/schedule/schedule_builder.h"

namespace agmm::test {
namespace {

using Op = ScheduleBuilder::Op;
using Use = ScheduleBuilder::Use;

// Grows a schedule one step at a time, in the order of a possible interleaving: everything that a
// step needs has been emitted before it, so that no step waits forever, on any lanes.
class Generator {
 public:
  Generator(const Problem& problem, const Topology& topology, std::mt19937_64& random)
      : problem_(problem),
        topology_(topology),
        random_(random),
        builder_(problem.mesh.size(), random),
        loads_from_(problem.mesh.size()) {}

  Schedule Generate() {
    // Joins that begin and end an epoch, in lane 0, because another one may be a relay lane.
    for (Rank rank = 0; rank < problem_.mesh.size(); ++rank)
      entry_.push_back(builder_.EmitIn(rank, 0));
    DrawWork();
    while (!products_.empty()) {
      if (!deliveries_.empty() && Chance(2)) Deliver();
      Advance(Draw(products_.size()));
    }
    for (Rank rank = 0; rank < problem_.mesh.size(); ++rank) {
      const Op join = builder_.EmitIn(rank, 0);
      for (Op load : loads_from_[rank]) builder_.AddEdge({load}, join);
    }
    const Schedule schedule = builder_.Finish();
    return Chance(2) ? Close(schedule) : schedule;
  }

 private:
  // A block of A that travels as a unit: a chunk of a shard's rows and a slab of K.
  struct Piece {
    Rank owner = 0;
    Block block;
    std::map<Rank, Use> copies;  // in workspaces
  };
  // A block of C at one rank, and how its slabs of K come together.
  struct Product {
    Rank rank = 0;
    Block c;
    std::vector<int> pieces;  // of A, still to be multiplied
    enum { kOnChip, kSum, kTwoSums } how = kOnChip;
    std::vector<Use> sums;
  };

  int Draw(size_t count) { return static_cast<int>(random_() % count); }
  bool Chance(int one_in) { return random_() % one_in == 0; }

  // Cuts `whole` at fewer than `most` random elements.
  std::vector<Range> Cut(Range whole, int most) {
    std::set<int64_t> cuts = {whole.begin, whole.end};
    const int64_t inner = whole.size() - 1;
    for (int i = Draw(most); i > 0 && inner > 0; --i)
      cuts.insert(whole.begin + 1 + static_cast<int64_t>(random_() % inner));
    std::vector<Range> out;
    for (auto at = cuts.begin(); std::next(at) != cuts.end(); ++at) {
      out.push_back({*at, *std::next(at)});
    }
    return out;
  }

  void DrawWork() {
    const std::vector<Range> slabs = Cut({0, ShapeOf(problem_).k}, 4);
    for (Rank owner = 0; owner < problem_.mesh.size(); ++owner) {
      const Block shard = ShardBlock(problem_, kA, owner);
      if (shard.empty()) continue;
      for (const Range& rows : Cut(shard.rows, 4)) {
        std::vector<int> pieces;
        for (const Range& slab : slabs) {
          pieces.push_back(static_cast<int>(pieces_.size()));
          pieces_.push_back({owner, {kA, rows, slab}, {}});
        }
        for (Rank rank = 0; rank < problem_.mesh.size(); ++rank) AddProducts(rank, rows, pieces);
      }
    }
    for (const auto& [reader, count] : readers_left_) {
      const auto [piece, rank] = reader;
      const Rank owner = pieces_[piece].owner;
      // Some ranks load a piece from a peer, most get a copy; few owners copy their own piece.
      const bool copies = owner == rank ? Chance(5) : !topology_.CanLoad(owner, rank) || !Chance(3);
      if (copies) deliveries_.insert(reader);
    }
  }

  void AddProducts(Rank rank, const Range& rows, const std::vector<int>& pieces) {
    const Block shard = ShardBlock(problem_, kC, rank);
    if (shard.empty()) return;
    for (const Range& cols : Cut(shard.cols, 3)) {
      Product product = {rank, {kC, rows, cols}, pieces};
      std::shuffle(product.pieces.begin(), product.pieces.end(), random_);
      if (pieces.size() > 1 && Chance(2)) {
        product.how = Chance(2) ? Product::kSum : Product::kTwoSums;
      }
      for (int piece : pieces) ++readers_left_[{piece, rank}];
      products_.push_back(product);
    }
  }

  Place Resident(const Block& block, Rank rank) const {
    const Tensor& tensor = problem_.tensors[block.operand];
    const Block shard = ShardBlock(problem_, block.operand, rank);
    const int64_t pitch = ShardPitchBytes(problem_.mesh, tensor);
    return {rank, block.operand,
            (block.rows.begin - shard.rows.begin) * pitch +
                (block.cols.begin - shard.cols.begin) * SizeOf(tensor.dtype),
            pitch, tensor.dtype};
  }

  std::vector<Rank> Holders(const Piece& piece) const {
    std::set<Rank> holders = {piece.owner};
    for (const auto& [rank, use] : piece.copies) holders.insert(rank);
    return {holders.begin(), holders.end()};
  }

  // Makes `op`, at `reader`, read the piece at `holder`.
  Place ReadPiece(const Piece& piece, Rank holder, Op op, Rank reader) {
    const auto copy = piece.copies.find(holder);
    if (copy != piece.copies.end() &&
        (holder != piece.owner || !builder_.IsRead(copy->second) || Chance(2))) {
      builder_.Read(copy->second, op);
      return builder_.PlaceOf(copy->second);
    }
    if (reader != holder) {
      builder_.AddEdge({entry_[holder]}, op);
      loads_from_[holder].push_back(op);
    }
    return Resident(piece.block, holder);
  }

  // Emits one transfer of one piece to some of the ranks that want it.
  void Deliver() {
    const int index = std::next(deliveries_.begin(), Draw(deliveries_.size()))->first;
    Piece& piece = pieces_[index];
    std::vector<Rank> wanting;
    for (const auto& [p, rank] : deliveries_) {
      if (p == index) wanting.push_back(rank);
    }
    std::shuffle(wanting.begin(), wanting.end(), random_);
    wanting.resize(1 + Draw(wanting.size()));
    const std::vector<Rank> holders = Holders(piece);
    const Rank holder = holders[Draw(holders.size())];
    Rank actor = holder;
    if (topology_.CanLoad(holder, wanting[0]) && Chance(3)) {
      actor = wanting[0];  // the rank that pulls, for the others, too
    }
    const Op op = builder_.Emit(actor);
    Transfer transfer;
    transfer.block = piece.block;
    transfer.from = ReadPiece(piece, holder, op, actor);
    for (Rank rank : wanting) {
      const int to = static_cast<int>(transfer.to.size());
      const Use use = builder_.Allocate(rank, piece.block, transfer.from.dtype, {op, to});
      transfer.to.push_back(builder_.PlaceOf(use));
      piece.copies[rank] = use;
      deliveries_.erase({index, rank});
    }
    builder_.Set(op, transfer);
  }

  // Returns the rank from which `rank` reads the piece: itself if possible, and sometimes a peer of
  // its node. Reads its own copy at least once, because a copy that no step waits for could arrive
  // at any time.
  Rank ChooseHolder(const Piece& piece, Rank rank) {
    const auto copy = piece.copies.find(rank);
    const bool has = copy != piece.copies.end() || piece.owner == rank;
    if (has && (!Chance(5) || (copy != piece.copies.end() && !builder_.IsRead(copy->second)))) {
      return rank;
    }
    std::vector<Rank> near;
    for (Rank holder : Holders(piece)) {
      if (topology_.CanLoad(holder, rank)) near.push_back(holder);
    }
    return near[Draw(near.size())];
  }

  // A multiply of one piece into the product, without its sum and out.
  Multiply Multiplied(const Product& product, int index, Op op) {
    Piece& piece = pieces_[index];
    Multiply m;
    m.a = piece.block;
    m.b = {kB, piece.block.cols, product.c.cols};
    m.c = product.c;
    m.a_place = ReadPiece(piece, ChooseHolder(piece, product.rank), op, product.rank);
    m.b_place = Resident(m.b, product.rank);
    m.finish = false;
    return m;
  }

  // Frees copies that their rank no longer needs, so that others may use their place.
  void Consumed(int index, Rank rank) {
    Piece& piece = pieces_[index];
    if (--readers_left_[{index, rank}] > 0 || piece.copies.count(rank) == 0 || Chance(2)) return;
    builder_.Free(piece.copies[rank]);
    piece.copies.erase(rank);
  }

  // Returns the place at which the op finishes the product: C, or a place in the workspace from
  // which it is copied to C.
  Place Finish(const Product& product, Op op) {
    const Place c = Resident(product.c, product.rank);
    if (!Chance(6)) return c;
    const Use use = builder_.Allocate(product.rank, product.c, c.dtype, {op});
    const Op copy = builder_.Emit(product.rank);
    builder_.Read(use, copy);
    builder_.Set(copy, Transfer{product.c, builder_.PlaceOf(use), {c}});
    builder_.Free(use);
    return builder_.PlaceOf(use);
  }

  // Emits the steps of the product that can run; removes it when it is complete.
  void Advance(int index) {
    Product& product = products_[index];
    auto ready = [&](int piece) { return deliveries_.count({piece, product.rank}) == 0; };
    if (product.how == Product::kOnChip) {
      if (!std::all_of(product.pieces.begin(), product.pieces.end(), ready)) return;
      RunOnChip(product);
    } else {
      const auto piece = std::find_if(product.pieces.begin(), product.pieces.end(), ready);
      if (piece == product.pieces.end()) return;
      const int chosen = *piece;
      product.pieces.erase(piece);
      RunSlab(product, chosen);
      if (!product.pieces.empty()) return;
    }
    products_.erase(products_.begin() + index);
  }

  void RunOnChip(const Product& product) {
    Op op = 0;
    for (size_t i = 0; i < product.pieces.size(); ++i) {
      op = i == 0 ? builder_.Emit(product.rank) : builder_.EmitNext(op);
      Multiply m = Multiplied(product, product.pieces[i], op);
      m.accumulate = i > 0;
      m.finish = i + 1 == product.pieces.size();
      if (m.finish) m.out = Finish(product, op);
      builder_.Set(op, m);
    }
    for (int piece : product.pieces) Consumed(piece, product.rank);
  }

  void RunSlab(Product& product, int piece) {
    const bool last = product.pieces.empty();
    const Op op = builder_.Emit(product.rank);
    Multiply m = Multiplied(product, piece, op);
    const size_t most = product.how == Product::kTwoSums ? 2 : 1;
    if (product.sums.size() < most) {
      product.sums.push_back(builder_.Allocate(product.rank, product.c, DType::kF32, {op}));
      m.acc = builder_.PlaceOf(product.sums.back());
    } else {
      const Use sum = product.sums[Draw(product.sums.size())];
      builder_.Update(sum, op);
      m.accumulate = true;
      m.acc = builder_.PlaceOf(sum);
      m.finish = last && most == 1;
      if (m.finish) m.out = Finish(product, op);
    }
    builder_.Set(op, m);
    Consumed(piece, product.rank);
    if (!last) return;
    if (most == 2) {
      const Op join = builder_.Emit(product.rank);
      Reduce reduce;
      reduce.c = product.c;
      for (Use sum : product.sums) builder_.Update(sum, join);
      reduce.acc = builder_.PlaceOf(product.sums[0]);
      reduce.from = {builder_.PlaceOf(product.sums[1])};
      reduce.finish = true;
      reduce.out = Finish(product, join);
      builder_.Set(join, reduce);
    }
    for (Use sum : product.sums) builder_.Free(sum);
  }

  const Problem& problem_;
  const Topology& topology_;
  std::mt19937_64& random_;
  ScheduleBuilder builder_;
  std::vector<Op> entry_;                    // by rank, its first step
  std::vector<std::vector<Op>> loads_from_;  // by rank, ops elsewhere that read its shard
  std::vector<Piece> pieces_;
  std::vector<Product> products_;
  std::set<std::pair<int, Rank>> deliveries_;         // (piece, rank) still to be copied
  std::map<std::pair<int, Rank>, int> readers_left_;  // (piece, rank) -> products there
};

}  // namespace

Schedule RandomSchedule(const Problem& problem, const Topology& topology, std::mt19937_64& random) {
  return Generator(problem, topology, random).Generate();
}

}  // namespace agmm::test
