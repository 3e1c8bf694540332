// Shared by the ranks of all C++ contenders: the dialogue with the driver (ranks.py), the split of
// a matrix, and the operands. Between commands a rank sleeps in read() and leaves the core to the
// others.
#pragma once

#include <sched.h>

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <functional>
#include <memory>
#include <sstream>
#include <stdexcept>
#include <string>
#include <type_traits>
#include <vector>

namespace agmm::bench {

using Words = std::vector<std::string>;
using BF16 = uint16_t;

// Takes commands, one a line, from FOLDER/in.RANK and answers each with one line in
// FOLDER/out.RANK: "ok ..." with what `answer` returned, or "error ..." with what it threw. Returns
// at the end of the commands.
inline void Serve(const std::string& folder, int rank,
                  const std::function<std::string(const Words&)>& answer) {
  std::ifstream in(folder + "/in." + std::to_string(rank));
  std::ofstream out(folder + "/out." + std::to_string(rank));
  out << "ok ready" << std::endl;
  for (std::string line; std::getline(in, line);) {
    std::istringstream text(line);
    Words words;
    for (std::string word; text >> word;) words.push_back(word);
    try {
      const std::string said = answer(words);  // before "ok", because it may throw
      out << "ok " << said << std::endl;
    } catch (const std::exception& error) {
      out << "error " << error.what() << std::endl;
    }
  }
}

// The hosts share the machine's clock, so all ranks begin a run at the same moment, kLeadUs after
// the last of them was ready. A run's time is from that moment to its end here, so that no rank
// gains by beginning late.
inline constexpr double kLeadUs = 500;
inline double NowUs() {
  return std::chrono::duration<double, std::micro>(
             std::chrono::steady_clock::now().time_since_epoch())
      .count();
}
inline void WaitUntil(double us) {
  while (NowUs() < us) sched_yield();
}

struct Part {
  int64_t begin = 0, end = 0;
  int64_t size() const { return end - begin; }
};

// The first total % parts parts have one element more, as in agmm.
inline Part PartOf(int64_t total, int parts, int part) {
  const int64_t size = total / parts, larger = total % parts;
  const int64_t begin = part * size + std::min<int64_t>(part, larger);
  return {begin, begin + size + (part < larger ? 1 : 0)};
}

// Small integers are exact.
inline BF16 ToBF16(float value) {
  uint32_t bits;
  std::memcpy(&bits, &value, sizeof(bits));
  return static_cast<BF16>(bits >> 16);
}

struct Free {
  void operator()(void* data) const { std::free(data); }
};
template <class T>
using BufferOf = std::unique_ptr<T[], Free>;  // T: BF16 or float
using Buffer = BufferOf<BF16>;

template <class T = BF16>
BufferOf<T> MakeBuffer(int64_t count) {
  const int64_t bytes = (count * static_cast<int64_t>(sizeof(T)) + 4095) / 4096 * 4096 + 4096;
  auto* data = static_cast<T*>(std::aligned_alloc(4096, bytes));
  if (data == nullptr) throw std::bad_alloc();
  std::memset(data, 0xff, bytes);  // NaN
  return BufferOf<T>(data);
}

// Rows x columns of a row-major int8 matrix of `width` columns in a file.
template <class T = BF16>
BufferOf<T> Load(const std::string& path, int64_t width, Part rows, Part cols) {
  std::ifstream file(path, std::ios::binary);
  std::vector<int8_t> line(cols.size());
  BufferOf<T> to = MakeBuffer<T>(rows.size() * cols.size());
  for (int64_t row = rows.begin; row < rows.end; ++row) {
    file.seekg(row * width + cols.begin);
    file.read(reinterpret_cast<char*>(line.data()), cols.size());
    if (!file) throw std::runtime_error(path + " is too short");
    T* out = to.get() + (row - rows.begin) * cols.size();
    for (int64_t i = 0; i < cols.size(); ++i) {
      if constexpr (std::is_same_v<T, BF16>) {
        out[i] = ToBF16(line[i]);
      } else {
        out[i] = line[i];
      }
    }
  }
  return to;
}

}  // namespace agmm::bench
