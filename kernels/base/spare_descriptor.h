// A process without a free descriptor cannot even refuse a connection, which then waits, and its
// listener stays readable for ever.
#pragma once

namespace agmm {

// One descriptor that is kept for such a moment.
class SpareDescriptor {
 public:
  SpareDescriptor();
  ~SpareDescriptor();
  SpareDescriptor(const SpareDescriptor&) = delete;

  bool kept() const { return fd_ >= 0; }
  // After accept has failed with EMFILE or ENFILE: accepts one connection of `listener`, which does
  // not block, in place of the spare, and closes it. Returns false if no connection
  // waits, or if another thread has taken the descriptor.
  bool Refuse(int listener);

 private:
  int fd_;
};

}  // namespace agmm
