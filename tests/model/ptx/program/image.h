// The PTX in an image that nvcc made.
#pragma once

#include <string>

namespace ptx {

// Returns the PTX for sm_90a in a fat binary that was made with --no-compress, or "".
std::string PtxInImage(const void* image);

}  // namespace ptx
