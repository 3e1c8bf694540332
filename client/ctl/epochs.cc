#include "client/ctl/epochs.h"

#include <algorithm>

#include "absl/strings/str_format.h"
#include "client/ctl/terminal_line.h"
#include "proto/convert/wait_chain.h"

namespace agmm {
namespace {

bool HasProgress(const v1::Job& job) {
  return std::any_of(job.ranks().begin(), job.ranks().end(),
                     [](const v1::RankReport& rank) { return rank.has_progress(); });
}

// "0.15/s", "3200/s".
std::string RateText(double epoch_us) {
  return absl::StrFormat(epoch_us < 1e4 ? "%.0f/s" : "%.2g/s", 1e6 / epoch_us);
}

}  // namespace

EpochCount CountEpochs(const v1::Job& job) {
  EpochCount count;
  count.total = std::max(job.repeat_count(), 1);
  count.done = HasProgress(job) ? count.total : 0;
  int ranks = 1, reported = 0;
  for (const v1::MeshAxis& axis : job.mesh().axes()) ranks *= axis.size();
  for (const v1::RankReport& rank : job.ranks()) {
    if (!rank.has_progress()) continue;
    ++reported;
    count.done = std::min(count.done, rank.progress().epochs_done());
    count.epoch_us = std::max(count.epoch_us, MedianEpochUs(rank));
    count.current_us = std::max(count.current_us, rank.progress().for_us());
  }
  count.partial = reported > 0 && reported < ranks;
  return count;
}

std::string EpochsText(const v1::Job& job) {
  const EpochCount count = CountEpochs(job);
  std::string text = absl::StrFormat("%d of %d %s done%s", count.done, count.total,
                                     count.total == 1 ? "epoch" : "epochs",
                                     count.partial ? " on the ranks that reported" : "");
  if (count.epoch_us > 0 && count.done < count.total) {
    absl::StrAppendFormat(
        &text, ", %s, %s", RateText(count.epoch_us),
        TimeLeft(std::max(0.0, (count.total - count.done) * count.epoch_us - count.current_us) *
                 1e-6));
  }
  // An epoch is mentioned if it takes more than twice the median, and more than 1 s.
  if (count.current_us > std::max(2 * count.epoch_us, 1e6)) {
    absl::StrAppendFormat(&text, ", %s for %s", count.done == 0 ? "the first one" : "the next one",
                          TimeText(count.current_us));
  }
  return text;
}

}  // namespace agmm
