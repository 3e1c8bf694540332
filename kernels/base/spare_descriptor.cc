#include "kernels/base/spare_descriptor.h"

#include <fcntl.h>
#include <sys/socket.h>
#include <unistd.h>

namespace agmm {
namespace {

int Open() { return open("/dev/null", O_RDONLY | O_CLOEXEC); }

}  // namespace

SpareDescriptor::SpareDescriptor() : fd_(Open()) {}

SpareDescriptor::~SpareDescriptor() {
  if (kept()) close(fd_);
}

bool SpareDescriptor::Refuse(int listener) {
  if (kept()) close(fd_);
  const int refused = accept4(listener, nullptr, nullptr, SOCK_CLOEXEC);
  if (refused >= 0) close(refused);
  fd_ = Open();
  return refused >= 0;
}

}  // namespace agmm
