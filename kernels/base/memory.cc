#include "kernels/base/memory.h"

#include <malloc.h>

namespace agmm {

// The sanitizers have their own malloc. glibc's malloc is then unused, and two threads that call
// mallinfo2 or malloc_trim first, at once, crash in its initialization.
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)

size_t AllocatedBytes() { return 0; }
void ReturnFreedMemory(size_t) {}

#else

size_t AllocatedBytes() { return mallinfo2().uordblks; }
void ReturnFreedMemory(size_t least_bytes) {
  if (least_bytes == 0 || mallinfo2().fordblks > least_bytes) malloc_trim(0);
}

#endif

}  // namespace agmm
