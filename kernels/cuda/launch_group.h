// Kernels of several ranks that wait for each other are submitted together.
//
// A driver may hold up a call until the work of a GPU has ended, and keep a lock meanwhile that
// other calls need: while it allocates, frees, loads a kernel. If the work is a kernel that waits
// for one that has not been submitted, neither ends. So
// 1. the ranks of a group submit their kernels only once all of them can (LaunchGroup),
// 2. none of them submits anything else before all have, and
// 3. calls that may block are made beside no group whose kernels are not all submitted
//    (QuietLaunches).
#pragma once

#include <condition_variable>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <vector>

#include "absl/status/status.h"
#include "absl/time/time.h"

namespace agmm {

// The ranks of a plan in this process whose kernels wait for each other. It is open in an epoch
// from the time when all of them can submit until all have. Then it is open for the next epoch.
// Thread-safe.
class LaunchGroup : public std::enable_shared_from_this<LaunchGroup> {
 public:
  // Adds a member, before its first epoch. `wake` gives it a turn soon; any thread may call it.
  void Join(std::function<void()> wake);
  // A member can submit its kernels. Once all members of the group (`count` of them) can, the
  // group opens, unless calls that may block are under way.
  void Arrive(uint64_t epoch, int count);
  // A member whose run has failed will never submit. If the group has not opened, it never will,
  // because all later epochs of the member fail, too.
  void Withdraw(uint64_t epoch);
  // Returns true if the members may submit their kernels.
  bool IsOpen(uint64_t epoch);
  // A member has submitted all of its kernels.
  void Submitted(uint64_t epoch);
  // The run of a member that had arrived is over. If the runs of all are, no kernel waits.
  void Over(uint64_t epoch);
  // Returns true if all members have submitted their kernels.
  bool HaveAllSubmitted(uint64_t epoch) const;
  void Wake();

 private:
  void Close();
  bool TryToOpen();

  mutable std::mutex mutex_;
  std::vector<std::function<void()>> members_;
  uint64_t epoch_ = 0;   // the last in which a member arrived
  uint64_t closed_ = 0;  // the last in which all have submitted
  int count_ = 0, arrived_ = 0, submitted_ = 0, over_ = 0;
  bool open_ = false, withdrawn_ = false;
};

// While one exists, no group of this process is open.
class QuietLaunches {
 public:
  // Waits until all open groups are closed, for at most `limit`.
  explicit QuietLaunches(absl::Duration limit = absl::Seconds(60));
  ~QuietLaunches();
  QuietLaunches(const QuietLaunches&) = delete;
  QuietLaunches& operator=(const QuietLaunches&) = delete;

  // OK, or UNAVAILABLE: a group was open for too long.
  const absl::Status& status() const { return status_; }

 private:
  absl::Status status_;
};

}  // namespace agmm
