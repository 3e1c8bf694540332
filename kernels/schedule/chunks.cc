#include "kernels/schedule/chunks.h"

#include <algorithm>
#include <map>
#include <tuple>
#include <utility>

namespace agmm {
namespace {

// The cuts of one dimension. Cells lie between neighbouring ends of blocks; each is cut in pieces.
struct Line {
  std::vector<int64_t> ends;  // of cells, ascending
  std::vector<Range> cuts;
  std::vector<int> piece;      // by cut
  std::vector<int> first_cut;  // by cell; one more at the end

  int CellAt(int64_t end) const {
    return static_cast<int>(std::lower_bound(ends.begin(), ends.end(), end) - ends.begin());
  }
};

Line LineOf(const std::vector<Block>& has, const std::vector<Blocks>& needs, Range Block::*range,
            int pieces) {
  Line line;
  const auto cut_at = [&](const Block& block) {
    if (block.empty()) return;
    line.ends.push_back((block.*range).begin);
    line.ends.push_back((block.*range).end);
  };
  for (const Block& block : has) cut_at(block);
  for (const Blocks& blocks : needs)
    for (const Block& block : blocks) cut_at(block);
  std::sort(line.ends.begin(), line.ends.end());
  line.ends.erase(std::unique(line.ends.begin(), line.ends.end()), line.ends.end());
  for (size_t cell = 0; cell + 1 < line.ends.size(); ++cell) {
    line.first_cut.push_back(static_cast<int>(line.cuts.size()));
    for (int piece = 0; piece < pieces; ++piece) {
      const Range part = SplitRange(line.ends[cell + 1] - line.ends[cell], pieces, piece);
      if (part.empty()) continue;
      line.cuts.push_back({line.ends[cell] + part.begin, line.ends[cell] + part.end});
      line.piece.push_back(piece);
    }
  }
  line.first_cut.push_back(static_cast<int>(line.cuts.size()));
  return line;
}

// Returns the distance from a holder to a rank; the nearest holder sends.
std::tuple<bool, bool, int, int> Distance(const Mesh& mesh, const Topology& topology, Rank holder,
                                          Rank rank) {
  int apart = 0;
  for (int axis = 0; axis < static_cast<int>(mesh.axes.size()); ++axis)
    apart += mesh.Coordinate(holder, axis) != mesh.Coordinate(rank, axis);
  return {!topology.SameNode(holder, rank), !topology.CanLoad(holder, rank), apart,
          (holder - rank + mesh.size()) % mesh.size()};
}

// `cell` decides which rank's nearest holder sends to a node, so that holders take turns.
std::vector<Source> SourcesOf(const Mesh& mesh, const Topology& topology,
                              const std::vector<Rank>& holders, const std::vector<Rank>& needers,
                              bool one_a_node, size_t cell) {
  std::vector<Source> sources;
  std::map<int, std::vector<Rank>> apart;  // by node without a holder
  const auto nearest = [&](Rank rank) {
    return *std::min_element(holders.begin(), holders.end(), [&](Rank a, Rank b) {
      return Distance(mesh, topology, a, rank) < Distance(mesh, topology, b, rank);
    });
  };
  const auto add = [&](Rank source, Rank rank) {
    auto at = std::find_if(sources.begin(), sources.end(),
                           [&](const Source& one) { return one.rank == source; });
    if (at == sources.end()) at = sources.insert(at, {source, {}});
    at->needers.push_back(rank);
  };
  for (Rank rank : needers) {
    if (std::binary_search(holders.begin(), holders.end(), rank)) continue;
    const Rank source = nearest(rank);
    if (one_a_node && !topology.SameNode(source, rank)) {
      apart[topology.node_of_rank[rank]].push_back(rank);
    } else {
      add(source, rank);
    }
  }
  for (const auto& [node, ranks] : apart) {
    const Rank source = nearest(ranks[cell % ranks.size()]);
    for (Rank rank : ranks) add(source, rank);
  }
  for (Source& source : sources) std::sort(source.needers.begin(), source.needers.end());
  return sources;
}

// SourcesOf for each group alone.
std::vector<Source> SourcesByGroup(const Mesh& mesh, const Topology& topology,
                                   const std::vector<Rank>& holders,
                                   const std::vector<Rank>& needers, bool one_a_node, size_t cell,
                                   const std::vector<int>& groups, bool from_all) {
  std::map<int, std::pair<std::vector<Rank>, std::vector<Rank>>> by_group;
  for (Rank rank : holders) by_group[groups[rank]].first.push_back(rank);
  for (Rank rank : needers) by_group[groups[rank]].second.push_back(rank);
  std::vector<Source> all;
  for (const auto& [group, ranks] : by_group) {
    if (ranks.first.empty()) continue;
    for (const Rank holder : ranks.first) {
      if (!from_all) break;
      Source& source = all.emplace_back(Source{holder, ranks.second});
      std::erase(source.needers, holder);
    }
    if (from_all) continue;
    const std::vector<Source> sources =
        SourcesOf(mesh, topology, ranks.first, ranks.second, one_a_node, cell);
    all.insert(all.end(), sources.begin(), sources.end());
  }
  return all;
}

}  // namespace

Range Grid::Within(const std::vector<Range>& cuts, const Range& range) {
  const auto at = [&](int64_t end) -> int64_t {
    return std::partition_point(cuts.begin(), cuts.end(),
                                [&](const Range& cut) { return cut.begin < end; }) -
           cuts.begin();
  };
  return {at(range.begin), at(range.end)};
}

Grid GridOf(const std::vector<Block>& has, const std::vector<Blocks>& needs, int row_pieces,
            int col_pieces) {
  return {LineOf(has, needs, &Block::rows, row_pieces).cuts,
          LineOf(has, needs, &Block::cols, col_pieces).cuts};
}

Chunks Refine(const Mesh& mesh, const Topology& topology, const std::vector<Block>& has,
              const std::vector<Blocks>& needs, int row_pieces, int col_pieces, bool one_a_node,
              const std::vector<int>& groups, bool from_all) {
  const Line rows = LineOf(has, needs, &Block::rows, row_pieces);
  const Line cols = LineOf(has, needs, &Block::cols, col_pieces);
  Chunks chunks;
  chunks.grid = {rows.cuts, cols.cuts};
  const size_t row_cells = rows.first_cut.size() - 1, col_cells = cols.first_cut.size() - 1;
  // By cell, ascending.
  std::vector<std::vector<Rank>> holders(row_cells * col_cells), needers(row_cells * col_cells);
  const auto mark = [&](Rank rank, const Block& block, std::vector<std::vector<Rank>>& marked) {
    if (block.empty()) return;
    for (int i = rows.CellAt(block.rows.begin); i < rows.CellAt(block.rows.end); ++i) {
      for (int j = cols.CellAt(block.cols.begin); j < cols.CellAt(block.cols.end); ++j)
        marked[i * col_cells + j].push_back(rank);
    }
  };
  for (Rank rank = 0; rank < static_cast<Rank>(has.size()); ++rank) {
    mark(rank, has[rank], holders);
    for (const Block& block : needs[rank]) mark(rank, block, needers);
  }
  chunks.list.resize(rows.cuts.size() * cols.cuts.size());
  const Operand operand = has.empty() ? 0 : has[0].operand;
  for (size_t i = 0; i < row_cells; ++i) {
    for (size_t j = 0; j < col_cells; ++j) {
      const size_t cell = i * col_cells + j;
      std::vector<Source> sources;
      if (!groups.empty()) {
        sources = SourcesByGroup(mesh, topology, holders[cell], needers[cell], one_a_node, cell,
                                 groups, from_all);
      } else if (!holders[cell].empty()) {
        sources = SourcesOf(mesh, topology, holders[cell], needers[cell], one_a_node, cell);
      }
      chunks.travel |= !sources.empty();
      const int cell_cols = cols.first_cut[j + 1] - cols.first_cut[j];
      for (int r = rows.first_cut[i]; r < rows.first_cut[i + 1]; ++r) {
        for (int c = cols.first_cut[j]; c < cols.first_cut[j + 1]; ++c) {
          chunks.list[chunks.IndexOf(r, c)] = {
              {operand, rows.cuts[r], cols.cuts[c]},
              (r - rows.first_cut[i]) * cell_cols + c - cols.first_cut[j],
              sources};
        }
      }
    }
  }
  return chunks;
}

std::vector<ChunkCount> CountChunks(const std::vector<Block>& has, const std::vector<Blocks>& needs,
                                    int row_pieces, int col_pieces) {
  const Line rows = LineOf(has, needs, &Block::rows, row_pieces);
  const Line cols = LineOf(has, needs, &Block::cols, col_pieces);
  const auto count = [&](const Block& block) -> int64_t {
    if (block.empty()) return 0;
    const auto cuts = [](const Line& line, const Range& range) -> int64_t {
      return line.first_cut[line.CellAt(range.end)] - line.first_cut[line.CellAt(range.begin)];
    };
    return cuts(rows, block.rows) * cuts(cols, block.cols);
  };
  std::vector<ChunkCount> counts;
  for (size_t rank = 0; rank < needs.size(); ++rank) {
    ChunkCount& sum = counts.emplace_back();
    for (const Block& block : needs[rank]) {
      const int64_t read = count(block);
      sum.read += read;
      sum.received += read - count(Intersect(block, has[rank]));
    }
  }
  return counts;
}

}  // namespace agmm
