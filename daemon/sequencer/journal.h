// The last jobs on disk, so that they survive a restart of node 0's daemon.
//
// Two files, PATH.0 and PATH.1, take turns, which bounds their size: when one is full, the other is
// emptied and filled. A file is a header (a magic word, and a number that rises with each turn) and
// records: length and checksum of a serialized v1::Job, then the job. A record that was torn by a
// crash, and everything after it, is dropped at the next start. A daemon that is killed or crashes
// loses the jobs that succeeded in its last 20 ms; jobs that failed are written at once. Nothing is
// synced: after a power failure of the host, the last records may be missing.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "agmm/v1/job.pb.h"
#include "daemon/observe/metrics.h"
#include "kernels/base/loop.h"

namespace agmm::scheduler {

class Journal {
 public:
  struct Bounds {
    int64_t file_bytes = 4 << 20;
    size_t jobs = 1000;  // jobs of earlier runs that are kept in memory
    // Bounds on the jobs that are recorded in a tenth of a second. Copying every job of a fast
    // series would slow down small jobs.
    int succeeded = 10, failed = 50;
    // Time for which a start waits for the files of a dying daemon.
    absl::Duration patience = absl::Seconds(2);
    // After an error nothing is written for this long.
    absl::Duration retry = absl::Seconds(10);
  };

  // Opens or makes the files, and reads what earlier runs have written. Counts the jobs that are
  // left out as `job_journal_left_out_total`. Errors: the reason why the files cannot be used,
  // without a final period.
  static absl::StatusOr<std::unique_ptr<Journal>> Open(const std::string& path, Metrics* metrics,
                                                       const Bounds& bounds);
  // Writes the added jobs.
  ~Journal();
  Journal(const Journal&) = delete;

  // The last jobs of earlier runs, oldest first, each with earlier_run set.
  std::vector<v1::Job>& earlier() { return earlier_; }

  // Returns true if a job that ends now should be added.
  bool HasRoom(bool succeeded, int64_t now_ns);
  // Adds a job that has ended, without times of steps and epochs. A record of more than 64 KiB is
  // shortened, or left out. Does not wait for the disk.
  void Add(v1::Job job);

 private:
  class Files;

  explicit Journal(std::unique_ptr<Files> files, Metrics* metrics, const Bounds& bounds);
  void WriteBatch();

  const Bounds bounds_;
  Metrics::Counter* const left_out_;
  int64_t period_ = 0;              // tenths of a second
  int succeeded_ = 0, failed_ = 0;  // jobs recorded in this period
  std::atomic<int> waiting_{0};     // for the disk
  std::vector<v1::Job> earlier_;
  std::mutex mutex_;
  std::vector<std::string> batch_;  // of payloads; guarded by mutex_
  std::unique_ptr<Files> files_;    // on the writer's thread
  Loop writer_{"the journal of jobs"};
};

}  // namespace agmm::scheduler
