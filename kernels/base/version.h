// The version of the program, and the commit that it was built from.
#pragma once

namespace agmm {

// "0.1.0 (1a2b3c4d5e6f)": the version and the commit; "0.1.0 (1a2b3c4d5e6f, changed)" if files
// differed from that commit; "0.1.0" if the sources were not a git checkout.
const char* Version();

}  // namespace agmm
