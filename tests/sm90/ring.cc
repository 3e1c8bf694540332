#include "tests/sm90/ring.h"

#include <algorithm>
#include <cstring>
#include <numeric>
#include <stdexcept>

#include "kernels/cuda/sm90/product_config.h"

namespace agmm::sm90 {
namespace {

std::string NameOf(Element element) {
  switch (element) {
    case Element::kF16: return "f16";
    case Element::kBF16: return "bf16";
    case Element::kE4M3: return "e4m3";
    case Element::kF32: return "f32";
  }
  return "";
}

constexpr int kMostTiles = 256;  // in a trace

// A warp copies rows of elements of 16 bits, and raises the word.
constexpr char kDeliver[] = R"(.version 9.0
.target sm_90a
.address_size 64
.visible .entry deliver(.param .u64 from, .param .u64 to, .param .u32 rows, .param .u32 cols,
  .param .u32 from_pitch, .param .u32 to_pitch, .param .u64 word, .param .u64 value)
{
.reg .pred %p;
.reg .b16 %h;
.reg .b32 %rows, %cols, %from_pitch, %to_pitch, %lane, %col, %at;
.reg .b64 %from, %to, %word, %value, %a, %b;
ld.param.u64 %from, [from];
ld.param.u64 %to, [to];
ld.param.u32 %rows, [rows];
ld.param.u32 %cols, [cols];
ld.param.u32 %from_pitch, [from_pitch];
ld.param.u32 %to_pitch, [to_pitch];
mov.u32 %lane, %laneid;
ROW:
mov.u32 %col, %lane;
COL:
setp.ge.u32 %p, %col, %cols;
@%p bra NEXT;
mul.wide.u32 %a, %col, 2;
add.u64 %b, %a, %to;
add.u64 %a, %a, %from;
ld.global.u16 %h, [%a];
st.global.u16 [%b], %h;
add.u32 %col, %col, 32;
bra COL;
NEXT:
mul.wide.u32 %a, %from_pitch, 2;
add.u64 %from, %from, %a;
mul.wide.u32 %a, %to_pitch, 2;
add.u64 %to, %to, %a;
sub.u32 %rows, %rows, 1;
setp.ne.u32 %p, %rows, 0;
@%p bra ROW;
bar.warp.sync 0xffffffff;
setp.ne.u32 %p, %lane, 0;
@%p bra END;
ld.param.u64 %word, [word];
ld.param.u64 %value, [value];
st.release.sys.global.u64 [%word], %value;
END:
ret;
}
)";

// Raises the word: a credit, as the owner of the places does, or the abort word for the host.
constexpr char kWrite[] = R"(.version 9.0
.target sm_90a
.address_size 64
.visible .entry write(.param .u64 word, .param .u64 value)
{
.reg .b64 %word, %value;
ld.param.u64 %word, [word];
ld.param.u64 %value, [value];
st.release.sys.global.u64 [%word], %value;
ret;
}
)";

}  // namespace

Ring::Ring(const Case& product, ptx::Module& kernels)
    : product_(product), kernels_(kernels), world_(memory_, product.options) {
  world_.races.enabled = product.check_races;
  const int chunks = static_cast<int>(product.rows.size());
  const int total = std::accumulate(product.rows.begin(), product.rows.end(), 0);
  const int k = product.along_k ? total : product.k, m = product.along_k ? product.k : total;
  for (int gpu = 0; gpu < product.gpus; ++gpu) {
    auto state = std::make_unique<Gpu>();
    for (int chunk = 0; chunk < chunks; ++chunk) {
      const int rows = product.along_k ? m : product.rows[chunk],
                cols = product.along_k ? product.rows[chunk] : k;
      state->a.push_back(std::make_unique<Matrix>(memory_, gpu, product.element, rows, cols,
                                                  Odd(1 + 2 * ((chunk + gpu) % 4))));
    }
    const bool k_major = product.element == Element::kE4M3;
    state->b = std::make_unique<Matrix>(memory_, gpu, product.element, k_major ? product.n : k,
                                        k_major ? k : product.n, Odd(3));
    state->c = std::make_unique<Matrix>(memory_, gpu, product.out, m, product.n, Odd(5));
    memory_.Add(state->slots, sizeof state->slots, gpu);
    memory_.Add(state->counters, sizeof state->counters, gpu);
    memory_.Add(state->credits, sizeof state->credits, gpu);
    state->trace.resize(kMostTiles);
    memory_.Add(state->trace.data(), state->trace.size() * sizeof(TileTrace), gpu);
    world_.races.SetWritten(reinterpret_cast<uint64_t>(state->slots), sizeof state->slots);
    world_.races.SetWritten(reinterpret_cast<uint64_t>(state->counters), sizeof state->counters);
    world_.races.SetWritten(reinterpret_cast<uint64_t>(state->credits), sizeof state->credits);
    gpus_.push_back(std::move(state));
  }
  memory_.Add(&abort_, sizeof abort_, 0);
  world_.races.SetWritten(reinterpret_cast<uint64_t>(&abort_), sizeof abort_);
}

void Ring::Run(uint64_t epoch) {
  const int chunks = static_cast<int>(product_.rows.size());
  for (int gpu = 0; gpu < product_.gpus; ++gpu) {
    Gpu& state = *gpus_[gpu];
    state.b->Fill(7 * static_cast<uint32_t>(epoch) + gpu, world_.races);
    state.c->Poison();
    for (int chunk = 0; chunk < chunks; ++chunk) {
      if (product_.gpus == 1 || chunk == gpu) {
        state.a[chunk]->Fill(100 * static_cast<uint32_t>(epoch) + chunk, world_.races);
      }
    }
    std::fill(state.trace.begin(), state.trace.end(), TileTrace());
    state.blocks.clear();
  }
  if (!product_.credits) world_.races.ForgetGlobal();
  for (int gpu = 0; gpu < product_.gpus; ++gpu) {
    if (product_.credits) GrantCredits(gpu, epoch);
    for (int chunk = 0; product_.delivered && chunk < chunks; ++chunk) {
      if (chunk != gpu) Deliver(gpu, chunk, epoch);
    }
    Start(gpu, epoch);
  }
  if (product_.aborted) Write(&abort_, 1, 0, {});
  world_.Run();
  for (const auto& grid : world_.grids()) gpus_[grid->launch.gpu]->known.Join(grid->at_end);
  // After an abort the host waits for all GPUs.
  if (!product_.aborted) world_.CheckEnd(memory_);
  world_.RemoveEnded();
}

int Ring::CountWrong() const {
  int wrong = 0;
  const std::vector<float> a = WholeA();
  for (const auto& state : gpus_) {
    for (size_t chunk = 0; chunk < product_.rows.size(); ++chunk) {
      const Matrix& own = *gpus_[product_.gpus == 1 ? 0 : chunk]->a[chunk];
      const Matrix& copy = *state->a[chunk];
      for (int row = 0; row < own.rows; ++row) {
        wrong += std::memcmp(own.Place(row, 0), copy.Place(row, 0),
                             static_cast<size_t>(own.cols) * BytesOf(own.element)) != 0;
      }
      wrong += copy.CountChangedOutside();
    }
    wrong += CountWrongProducts(*state, a) + state->c->CountChangedOutside();
  }
  return wrong;
}

int Ring::CountWrongTraces() const {
  int wrong = 0;
  for (const auto& state : gpus_) {
    for (size_t tile = 0; tile < state->trace.size(); ++tile) {
      const TileTrace& record = state->trace[tile];
      if (tile >= state->blocks.size()) {
        const TileTrace none = {};
        wrong += std::memcmp(&record, &none, sizeof none) != 0;
        continue;
      }
      const size_t cta = tile % product_.ctas;
      const bool in_order =
          record.start_ns > 0 && record.start_ns < record.waited_ns &&
          record.waited_ns < record.end_ns[0] && record.waited_ns < record.end_ns[1] &&
          (tile == cta || state->trace[tile - product_.ctas].waited_ns < record.start_ns);
      // The model's SM is the CTA.
      wrong +=
          !in_order || record.block != state->blocks[tile] || record.sm != static_cast<int>(cta);
    }
  }
  return wrong;
}

std::vector<float> Ring::WholeA() const {
  const int m = gpus_[0]->c->rows, k = depth_of_k();
  std::vector<float> whole(static_cast<size_t>(m) * k);
  int first = 0;
  for (size_t chunk = 0; chunk < product_.rows.size(); ++chunk) {
    const Matrix& a = *gpus_[product_.gpus == 1 ? 0 : chunk]->a[chunk];
    for (int row = 0; row < a.rows; ++row) {
      for (int col = 0; col < a.cols; ++col) {
        whole[product_.along_k ? static_cast<size_t>(row) * k + first + col
                               : static_cast<size_t>(first + row) * k + col] = a.At(row, col);
      }
    }
    first += product_.rows[chunk];
  }
  return whole;
}

int Ring::depth_of_k() const { return b_is_k_major() ? gpus_[0]->b->cols : gpus_[0]->b->rows; }

int Ring::CountWrongProducts(const Gpu& state, const std::vector<float>& a) const {
  const bool k_major = b_is_k_major();
  const int k = depth_of_k(), n = product_.n;
  std::vector<float> b(static_cast<size_t>(k) * n), sums(n);
  for (int i = 0; i < k; ++i) {
    for (int col = 0; col < n; ++col)
      b[static_cast<size_t>(i) * n + col] = k_major ? state.b->At(col, i) : state.b->At(i, col);
  }
  int wrong = 0;
  for (int row = 0; row < state.c->rows; ++row) {
    std::fill(sums.begin(), sums.end(), 0.f);
    for (int i = 0; i < k; ++i) {
      const float factor = a[static_cast<size_t>(row) * k + i];
      const float* const from = &b[static_cast<size_t>(i) * n];
      for (int col = 0; col < n; ++col) sums[col] += factor * from[col];
    }
    for (int col = 0; col < n; ++col) {
      std::byte want[4];
      StoreFloat(product_.out, sums[col], want);
      wrong += std::memcmp(want, state.c->Place(row, col), BytesOf(product_.out)) != 0;
    }
  }
  return wrong;
}

int Ring::ChunkAt(int gpu, int step) const {
  const int chunks = static_cast<int>(product_.rows.size());
  if (product_.gpus == 1) return step;
  // Both ways: the chunks from the previous GPUs and those from the next ones in turn.
  const int behind = !product_.both_ways ? step : step % 2 ? (step + 1) / 2 : -step / 2;
  return (gpu - behind + chunks) % chunks;
}

int Ring::NeighbourOf(int gpu, int direction) const {
  return (gpu + (direction == 0 ? 1 : product_.gpus - 1)) % product_.gpus;
}

TileOrder Ring::OrderOf(const Block& block) const {
  return {block, product_.tile_cols, product_.raster_rows, product_.cluster};
}

int Ring::HopsOf(int direction) const {
  if (product_.gpus == 1 || product_.delivered) return 0;
  if (!product_.both_ways) return direction == 0 ? product_.gpus - 1 : 0;
  return direction == 0 ? product_.gpus / 2 : (product_.gpus - 1) / 2;
}

uint64_t* Ring::SlotOf(int gpu, int chunk) {
  const bool shared = product_.mistake == Mistake::kOneSlotForTwoSteps && chunk == ChunkAt(gpu, 2);
  return &gpus_[gpu]->slots[shared ? ChunkAt(gpu, 1) : chunk];
}

int Ring::AddMap(Arguments& arguments, const ptx::TensorMap& map) {
  static_assert(sizeof(CUtensorMap) == sizeof map);
  std::memcpy(&arguments.maps[maps_], &map, sizeof map);
  return maps_++;
}

void Ring::Start(int gpu, uint64_t epoch) {
  const int chunks = static_cast<int>(product_.rows.size()), depth = depth_of_stage();
  Gpu& state = *gpus_[gpu];
  auto arguments = std::make_unique<Arguments>();
  std::memset(static_cast<void*>(arguments.get()), 0, sizeof(Arguments));
  arguments->raster_rows = product_.raster_rows;
  arguments->send_columns = product_.send_columns;
  arguments->epoch = epoch;
  if (product_.aborted) arguments->abort = &abort_;
  if (product_.traced) arguments->trace = state.trace.data();
  maps_ = 0;
  std::vector<int> first(chunks + 1, 0);
  std::partial_sum(product_.rows.begin(), product_.rows.end(), first.begin() + 1);
  int b_map = product_.along_k ? -1 : AddMap(*arguments, BMap(*state.b, depth, 0, state.b->rows));
  for (int step = 0; step < chunks; ++step) {
    const int chunk = ChunkAt(gpu, step);
    Piece& piece = arguments->pieces[step];
    piece = Piece();
    piece.a = {AddMap(*arguments, state.a[chunk]->Map(kTileRows, depth)), state.a[chunk]->x};
    if (product_.along_k) {
      b_map = AddMap(*arguments, BMap(*state.b, depth, first[chunk], product_.rows[chunk]));
    }
    piece.b = {b_map, state.b->x};
    piece.k = product_.along_k ? product_.rows[chunk] : product_.k;
    if (product_.gpus > 1 && step > 0) piece.waits[step % 2] = SlotOf(gpu, chunk);
    const bool begins_block = !product_.along_k || step == 0;
    if (begins_block) {
      Block& block = arguments->blocks[arguments->block_count++];
      block = Block();
      block.rows = product_.along_k ? state.c->rows : product_.rows[chunk];
      block.cols = product_.n;
      block.first_piece = step;
      block.c = state.c->Place(product_.along_k ? 0 : first[chunk], 0);
      block.pitch = state.c->pitch;
    }
    Block& block = arguments->blocks[arguments->block_count - 1];
    ++block.pieces;
    const TileOrder order = OrderOf(block);
    const int cluster = product_.cluster;
    if (begins_block) state.blocks.resize(state.blocks.size() + order.count() * cluster, step);
    AddSends(*arguments, piece, gpu, chunk,
             cluster * ContributorsOf(order, product_.ctas / cluster, product_.send_columns));
  }
  Launch(gpu, *arguments);
}

void Ring::AddSends(Arguments& arguments, Piece& piece, int gpu, int chunk, int contributors) {
  Gpu& state = *gpus_[gpu];
  for (int direction = 0; direction < kDirections; ++direction) {
    const int passed = direction == 0 ? gpu - chunk : chunk - gpu;
    if ((passed + product_.gpus) % product_.gpus >= HopsOf(direction)) continue;
    const int neighbour = NeighbourOf(gpu, direction);
    const Gpu& receiver = *gpus_[neighbour];
    Send& send = piece.sends[direction];
    send.map = AddMap(arguments, receiver.a[chunk]->Map(kTileRows, depth_of_stage()));
    send.x = receiver.a[chunk]->x;
    send.contributors = contributors;
    send.counter = &state.counters[direction][chunk];
    send.slot = SlotOf(neighbour, chunk);
    if (product_.credits) send.credit = &state.credits[direction];
  }
}

ptx::TensorMap Ring::BMap(const Matrix& b, int depth, int first_row, int rows) const {
  if (b_is_k_major()) return b.Map(product_.tile_cols, depth);
  ptx::TensorMap map = b.Map(depth, 64);
  map.address += static_cast<uint64_t>(first_row) * b.pitch * BytesOf(b.element);
  map.dims[1] = rows;
  return map;
}

void Ring::Launch(int gpu, const Arguments& arguments) {
  const ProductConfig config =
      ProductKernel(NameOf(product_.element), NameOf(product_.out), product_.tile_cols,
                    product_.gpus > 1 && !product_.delivered, product_.cluster);
  ptx::Kernel& kernel = *kernels_.kernels.at(config.kernel);
  const void* const parameters[] = {&arguments};
  world_.Start({.module = &kernels_,
                .kernel = &kernel,
                .grid = {static_cast<uint32_t>(product_.ctas), 1, 1},
                .block = {kThreads, 1, 1},
                .cluster = {static_cast<uint32_t>(product_.cluster), 1, 1},
                .dynamic_shared_bytes = static_cast<uint32_t>(config.shared_bytes),
                .parameters = ptx::PackParameters(kernel, parameters),
                .gpu = gpu,
                .known = product_.credits ? gpus_[gpu]->known : ptx::Knowledge()});
}

void Ring::Deliver(int gpu, int chunk, uint64_t epoch) {
  static ptx::Module& module = *ptx::ParseModule(kDeliver).release();
  ptx::Kernel& kernel = *module.kernels.at("deliver");
  const Matrix& from = *gpus_[chunk]->a[chunk];
  const Matrix& to = *gpus_[gpu]->a[chunk];
  const std::byte* const source = from.Place(0, 0);
  std::byte* const target = to.Place(0, 0);
  uint64_t* const word = SlotOf(gpu, chunk);
  const void* const parameters[] = {&source,     &target,   &from.rows, &from.cols,
                                    &from.pitch, &to.pitch, &word,      &epoch};
  world_.Start({.module = &module,
                .kernel = &kernel,
                .parameters = ptx::PackParameters(kernel, parameters),
                .gpu = chunk});
}

void Ring::Write(uint64_t* word, uint64_t value, int gpu, const ptx::Knowledge& known) {
  static ptx::Module& module = *ptx::ParseModule(kWrite).release();
  ptx::Kernel& kernel = *module.kernels.at("write");
  const void* const parameters[] = {&word, &value};
  world_.Start({.module = &module,
                .kernel = &kernel,
                .block = {1, 1, 1},
                .parameters = ptx::PackParameters(kernel, parameters),
                .gpu = gpu,
                .known = known});
}

void Ring::GrantCredits(int gpu, uint64_t epoch) {
  if (product_.mistake == Mistake::kCreditRaisedEarly) ++epoch;
  for (int direction = 0; direction < kDirections; ++direction) {
    const int sender = NeighbourOf(gpu, 1 - direction);
    const bool missing = product_.mistake == Mistake::kCreditMissing && gpu == 1 && sender == 0;
    if (HopsOf(direction) == 0 || missing) continue;
    Write(&gpus_[sender]->credits[direction], epoch, gpu, gpus_[gpu]->known);
  }
}

}  // namespace agmm::sm90
