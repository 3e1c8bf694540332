#include "tests/model/ptx/program/image.h"

#include <cstdint>
#include <cstring>
#include <string_view>

namespace ptx {
namespace {

// The beginning of a fat binary: sizes of this header, and of what follows.
struct Header {
  uint32_t magic;
  uint16_t version, header_bytes;
  uint64_t bytes;
};
constexpr uint32_t kMagic = 0xba55ed50;
constexpr size_t kDirectivesBytes = 120;  // .version and .target are among these

}  // namespace

std::string PtxInImage(const void* image) {
  Header header;
  std::memcpy(&header, image, sizeof header);
  if (header.magic != kMagic) return "";
  const std::string_view all(static_cast<const char*>(image), header.header_bytes + header.bytes);
  for (size_t at = all.find(".version"); at != all.npos; at = all.find(".version", at + 1)) {
    const std::string_view text = all.substr(at, all.find('\0', at) - at);
    if (text.substr(0, kDirectivesBytes).find("sm_90a") != text.npos) return std::string(text);
  }
  return "";
}

}  // namespace ptx
