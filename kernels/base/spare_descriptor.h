// A process without a free descriptor cannot even refuse a connection. The connection then waits,
// and the listener stays readable forever.
#pragma once

namespace agmm {

// Keeps one descriptor for this case.
class SpareDescriptor {
 public:
  SpareDescriptor();
  ~SpareDescriptor();
  SpareDescriptor(const SpareDescriptor&) = delete;

  bool kept() const { return fd_ >= 0; }
  // To be called after accept has failed with EMFILE or ENFILE. Closes the spare, accepts and
  // closes one connection of the non-blocking `listener`, and opens the spare again. Returns false
  // if no connection waits, or if another thread has taken the descriptor.
  bool Refuse(int listener);

 private:
  int fd_;
};

}  // namespace agmm
