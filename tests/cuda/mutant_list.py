"""The mistakes that mutants.py makes, one at a time, in the host half of CUDA devices.

Each edit replaces a text that occurs once in its file. Mutants with a `reason` change nothing that a program can notice,
so all tests pass; without one, a test must fail.
"""

import dataclasses


@dataclasses.dataclass(frozen=True)
class Mutant:
    name: str
    file: str
    old: str
    new: str
    breaks: str
    reason: str = ""


SLOTS, RUN, QUEUE = "kernels/cuda/cuda_slots.h", "kernels/cuda/cuda_run.cc", "kernels/cuda/cuda_queue.cc"
HEAP, PINNED, PREPARED = "kernels/cuda/cuda_heap.cc", "kernels/cuda/pinned.cc", "kernels/cuda/prepared.cc"
WORK, STREAMS, PROGRAM = "kernels/cuda/step_work.cc", "kernels/cuda/streams.cc", "kernels/cuda/cuda_program.cc"
EXECUTOR, CLOCK, GPU = "kernels/cuda/cuda_executor.cc", "kernels/cuda/gpu_clock.cc", "kernels/cuda/gpu.cc"
EPOCHS, THREAD = "kernels/device/epoch_queue.h", "kernels/cuda/gpu_thread.cc"
UNITS, KERNEL_STEPS, PRODUCTS = "kernels/cuda/launch_units.cc", "kernels/cuda/kernel_steps.cc", "kernels/cuda/product_work.cc"
GROUP = "kernels/cuda/launch_group.cc"

# Bounds of rings: epochs ahead, sets of events, ends of epochs.
RINGS = [
    Mutant("one set of events less", SLOTS, "kEventSets = kMaxSubmittedEpochs + 1;", "kEventSets = kMaxSubmittedEpochs;",
           "an event stands for the epoch of a producer that is four ahead"),
    Mutant("one set of events", SLOTS, "kEventSets = kMaxSubmittedEpochs + 1;", "kEventSets = 1;",
           "all epochs share their events"),
    Mutant("twice the epochs ahead", SLOTS, "kMaxSubmittedEpochs = 4;", "kMaxSubmittedEpochs = 8;",
           "hardware queues fill up"),
    Mutant("twice the epochs in the queue", "kernels/cuda/cuda_queue.h", "epochs_{kMaxSubmittedEpochs}",
           "epochs_{2 * kMaxSubmittedEpochs}", "more epochs than runs and events"),
    Mutant("one run a plan", EXECUTOR, "i < kMaxSubmittedEpochs; ++i", "i < 1; ++i", "epochs without a run"),
    Mutant("steps share the events of all epochs", "kernels/cuda/prepared.h", "units_[unit][epoch % kEventSets]", "units_[unit][0]",
           "a later epoch hides the end and the times of an earlier one"),
    Mutant("the end of an epoch is not counted", QUEUE, "++closed_;", "", "all epochs have one end"),
    Mutant("an arrival has the event of epoch 0", RUN, "const CUevent arrived = half.arrived[epoch_ % kEventSets];",
           "const CUevent arrived = half.arrived[0];", "slots stand for events that are not recorded"),
    Mutant("a lag is ignored", SLOTS, "(epoch - lag) % kEventSets", "epoch % kEventSets",
           "a credit is the event of another epoch"),
    Mutant("a word is raised before its event", SLOTS,
           "    events_[index][epoch % kEventSets].store(event, std::memory_order_relaxed);\n"
           "    Slots::Raise(index, epoch);",
           "    Slots::Raise(index, epoch);\n"
           "    events_[index][epoch % kEventSets].store(event, std::memory_order_relaxed);",
           "a waiter may see the word and not the event",
           "a thread would have to stop between the two lines, in one of a plan's first five epochs"),
]

# Order between streams, and what the host sees.
ORDER = [
    Mutant("no wait for the last epoch", RUN, "if (after_ != nullptr && lanes_", "if (false && lanes_",
           "an epoch overtakes the one before"),
    Mutant("the last epoch is forgotten", QUEUE, "last_end_ = run.end();", "", "an epoch overtakes the one before"),
    Mutant("begins are the lanes that need not wait", PROGRAM, "absl::c_none_of(program_.units[units[0]].events",
           "absl::c_any_of(program_.units[units[0]].events", "lanes that must wait for the last epoch do not"),
    Mutant("relay lanes stand for the last epoch", PROGRAM,
           "raised != lane_of_slot.end() && !program_.relays[raised->second]", "raised != lane_of_slot.end()",
           "a lane behind a relay lane does not wait for the last epoch"),
    Mutant("no wait for slots", RUN, "if (event == nullptr) continue;\n    AGMM_RETURN_IF_ERROR(prepared_.Wait",
           "if (event != nullptr) continue;\n    AGMM_RETURN_IF_ERROR(prepared_.Wait", "steps overtake their producers"),
    Mutant("no wait for credits", RUN, 'if (wait.lag > 0 && AGMM_FAILPOINT("executor.skip_credit")) continue;',
           "if (wait.lag > 0) continue;", "an epoch overtakes the readers of the one before"),
    Mutant("a step ends before its work", RUN,
           "  AGMM_RETURN_IF_ERROR(PutUnit(unit));\n"
           "  AGMM_CUDA_RETURN(gpu_, cuEventRecord, events.end, stream);",
           "  AGMM_CUDA_RETURN(gpu_, cuEventRecord, events.end, stream);\n"
           "  AGMM_RETURN_IF_ERROR(PutUnit(unit));", "the event is too early"),
    Mutant("a step begins after its work", RUN,
           "  AGMM_CUDA_RETURN(gpu_, cuEventRecord, events.begin, stream);\n"
           "  AGMM_RETURN_IF_ERROR(PutUnit(unit));",
           "  AGMM_RETURN_IF_ERROR(PutUnit(unit));\n"
           "  AGMM_CUDA_RETURN(gpu_, cuEventRecord, events.begin, stream);", "steps seem to take no time"),
    Mutant("the second half does not wait", RUN, "AGMM_RETURN_IF_ERROR(prepared_.Wait(stream, EventsOf(program_.unit_of_step[index]).end));", "",
           "pinned bytes are read before they arrive"),
    Mutant("a slot is raised by the first half", RUN, "if (half.to == static_cast<int>(part)) event = half.arrived",
           "if (half.to < 0) event = half.arrived", "a slot is raised too early"),
    Mutant("an epoch ends before its lanes", RUN, "if (lane.tail != nullptr && !IsRelay(lane))\n      AGMM_CUDA_RETURN",
           "if (lane.tail != nullptr && false)\n      AGMM_CUDA_RETURN", "the end is recorded before the lanes"),
    Mutant("an epoch ends before its relay lanes", RUN, "lane.tail == nullptr || joined || Done(lane.tail)",
           "lane.tail == nullptr || joined || true", "copies go on after the report"),
    Mutant("an epoch is over before its end", RUN, "if (end_ != nullptr && !Done(end_)) return false;", "",
           "work goes on after the report"),
    Mutant("an epoch is over before its messages", RUN, "phase_ == Phase::kSubmitting || in_flight_ > 0",
           "phase_ == Phase::kSubmitting", "a message of an epoch that was reported"),
    Mutant("an epoch is over before its sequels", RUN, "if (has_sequels()) return false;", "",
           "messages are not sent, copies have not arrived"),
    Mutant("an epoch follows one without an end", QUEUE, "if (run.end() == nullptr) break;", "",
           "nothing orders the next epoch"),
    Mutant("reports in another order", EPOCHS, "nullptr : in_progress_[0];", "nullptr : in_progress_.back();",
           "owners queue epochs in different orders"),
    Mutant("a message is sent before its bytes", RUN, "Done(EventsOf(lane.messages.front()).end)",
           "Done(EventsOf(lane.messages.front()).begin)", "a message has old bytes"),
]

# Memory that is returned, filled and shared.
MEMORY = [
    Mutant("staging is never returned", RUN, "  prepared_.staging().Give(staged->second.data);\n", "",
           "a rank runs out of staging"),
    Mutant("staging is kept after a send", RUN, "if (carried_bytes) Release(step);", "",
           "an epoch runs out of staging"),
    Mutant("staging is kept after an arrival", RUN, "    Release(arriving_.front().step);\n", "",
           "an epoch runs out of staging"),
    Mutant("staging of a failed epoch is kept", RUN,
           "    for (const auto& [step, staged] : staged_) prepared_.staging().Give(staged.data);\n", "",
           "later plans run out of staging"),
    Mutant("staging is returned by the first user", RUN, "|| --staged->second.users > 0) return;", ") return;",
           "bytes change while other messages read them"),
    Mutant("staging is returned twice", RUN, "  staged_.erase(staged);\n", "", "two copies share staging"),
    Mutant("staging is returned before a send", RUN,
           "        Send(index, static_cast<int>(part), copy.push[part],",
           "        prepared_.staging().Give(staged_[index].data);\n"
           "        Send(index, static_cast<int>(part), copy.push[part],", "a message's bytes change"),
    Mutant("staging beyond its region", PINNED, "if (begin + bytes > region.memory->bytes()) continue;",
           "if (begin > region.memory->bytes()) continue;", "copies to memory that does not exist"),
    Mutant("staging between lines", PINNED, "region.taken[begin] = room;", "region.taken[begin] = bytes;",
           "two messages share a cache line"),
    Mutant("staging for the first plan", PINNED, "if (region.memory->bytes() >= bytes) return", "if (true) return",
           "a larger plan waits for staging without end"),
    Mutant("a returned gap is too small", PINNED, "if (offset - begin >= room) break;", "if (offset - begin > room) break;",
           "staging is lost to gaps"),
    Mutant("a pinned chunk is refilled early", HEAP,
           "    AGMM_RETURN_IF_ERROR(Await(chunk));\n    CopyRows({from.data", "    CopyRows({from.data",
           "a write changes bytes of a pending copy"),
    Mutant("a write returns early", HEAP, "  for (const Chunk& chunk : chunks_) AGMM_RETURN_IF_ERROR(Await(chunk));\n", "",
           "copies go on after the write"),
    Mutant("a write uses one chunk", HEAP, "chunks_[turn++ % chunks_.size()]", "chunks_[turn % chunks_.size()]",
           "copies by host and GPU do not overlap", "only the time of a write changes, because each chunk is awaited"),
    Mutant("a chunk is read early", HEAP, "AGMM_RETURN_IF_ERROR(Await(chunk(next - 1)));", "", "a read has old bytes"),
    Mutant("a chunk is awaited once", HEAP, "      AGMM_RETURN_IF_ERROR(Await(chunk(next)));\n", "",
           "a chunk is written by two copies",
           "the read has awaited this chunk two pieces before, and only a failed write leaves one that is not awaited"),
    Mutant("a fill returns early", HEAP,
           '    AGMM_RETURN_IF_ERROR(gpu_->Await(filled_, work.rows * to.row_bytes, "a fill of its heap"));\n', "",
           "the fill goes on after the call"),
    Mutant("pieces of a row begin at its start", HEAP, "piece.row * rows.pitch_bytes + piece.begin, nullptr",
           "piece.row * rows.pitch_bytes, nullptr", "rows longer than a chunk are wrong"),
    Mutant("a heap is not mapped for a peer", EXECUTOR, "if (found.heaps[rank].reachable)", "if (false)",
           "a GPU accesses memory without a right"),
    Mutant("lanes share a workspace", PREPARED, "streams.Workspace(index)", "streams.Workspace(0)",
           "products of two lanes write one workspace"),
    Mutant("lanes share a stream", STREAMS, "lanes_[{lane, multiplies}]", "lanes_[{0, multiplies}]", "lanes wait for each other"),
    Mutant("memory for half of the sums", PREPARED, "GpuBytes::Create(gpu_, program_.chip_bytes[i],",
           "GpuBytes::Create(gpu_, program_.chip_bytes[i] / 2,", "sums on chip overwrite other memory"),
]

# Places and shapes.
WORKS = [
    Mutant("a sum's rows are packed", WORK, "ChipPitchBytes(multiply.n),", "multiply.n * 4,",
           "a sum on chip is read at another pitch"),
    Mutant("the second half goes to the first place", WORK, "EndAt(copy.to[half.to])", "EndAt(copy.to[0])",
           "bytes arrive at another rank"),
    Mutant("staged rows have the pitch of the heap", WORK, "CopyRowsOn(gpu_, from, {0, staged, copy.row_bytes}",
           "CopyRowsOn(gpu_, from, {0, staged, from.pitch_bytes}", "a message has padding"),
    Mutant("a sum is not loaded", WORK, "if (multiply.load) {", "if (false) {", "a sum loses what it continues"),
    Mutant("a sum is not converted", WORK, "if (!multiply.convert) return", "if (true) return", "C is not written"),
    Mutant("a reduction loses its sum", WORK, "if (reduce.accumulate) work.from", "if (false) work.from",
           "a sum loses what it continues"),
    Mutant("the alignment of the buffer", PROGRAM, "const int64_t bits = place.offset_bytes | kRowAlignBytes;",
           "const int64_t bits = kRowAlignBytes;", "products of addresses that are less aligned"),
    Mutant("times without a beginning", CLOCK, "return anchor_.ns + static_cast<int64_t>", "return static_cast<int64_t>",
           "times of another clock"),
]

# Failures, lost GPUs and work that never ends.
FAILURES = [
    Mutant("only the own GPU is given up", QUEUE, "if (gpu != nullptr) gpu->health().GiveUp",
           "if (gpu == gpu_) gpu->health().GiveUp", "memory that hung work may write is freed"),
    Mutant("other epochs wait for stuck work", QUEUE,
           "  for (const CudaEpochs::Launch* other : epochs_.in_progress()) other->run->Abandon(stuck_);\n", "",
           "epochs behind stuck work never end"),
    Mutant("new epochs wait for stuck work", QUEUE, "if (!stuck_.ok()) launch->run->Abandon(stuck_);", "",
           "epochs behind stuck work never end"),
    Mutant("a failed run does not fail its plan", QUEUE,
           "if (launch.run->failed()) epochs_.Fail(launch, launch.run->status());", "",
           "later epochs run after a failed one"),
    Mutant("a failed message does not fail its plan", QUEUE, "    PassFailure(*launch);\n  }\n  if (", "  }\n  if (",
           "later epochs begin after a failed one"),
    Mutant("an executor does not wait for its epochs", EXECUTOR, "target_.pending.Drain();", "",
           "an executor is destroyed while epochs use it"),
    Mutant("a lost peer is not noticed", PREPARED, "AGMM_RETURN_IF_ERROR(peer->health().lost());", "",
           "epochs wait for a lost GPU"),
    Mutant("a lost event is done", RUN, 'if (result != CUDA_SUCCESS) Fail(gpu.Failed(result, "cuEventQuery"));', "",
           "an epoch of a lost GPU succeeds"),
    Mutant("memory of a hung GPU is freed", STREAMS,
           "GpuBytes::~GpuBytes() {\n  if (!gpu_->health().given_up().ok()) return;", "GpuBytes::~GpuBytes() {",
           "a call waits for hung work"),
    Mutant("pinned memory of a hung GPU is freed", PINNED,
           "PinnedBytes::~PinnedBytes() {\n  if (!gpu_->health().given_up().ok()) return;", "PinnedBytes::~PinnedBytes() {",
           "a call waits for hung work"),
    Mutant("a heap of a hung GPU is freed", "kernels/cuda/mapped_bytes.cc",
           "MappedBytes::~MappedBytes() {\n  if (!gpu_->health().given_up().ok()) return;", "MappedBytes::~MappedBytes() {",
           "a call waits for hung work"),
    Mutant("a hung copy is awaited again", HEAP, "if (!gpu_->health().given_up().ok()) hung_ = status;", "",
           "each caller waits for two seconds"),
    Mutant("a thread sleeps while work is running", QUEUE, "turn.in_hand |= launch->run->in_hand();", "",
           "ends are seen when something else wakes the thread"),
    Mutant("a tenant is removed in its turn", THREAD, "passed_.wait(lock, [&] { return !turning_ || pass_ != pass; });", "",
           "a queue is destroyed in its turn"),
    Mutant("an epoch's time is not counted", RUN, "begun_.emplace(program_.longest_ns);", "begun_.emplace(0);",
           "long work is given up early"),
    Mutant("awaited work has no limit", GPU, "waited_ns > allowed_ns ||", "false ||", "a caller waits without end"),
]

# Kernels that wait for slots and send.
KERNELS = [
    Mutant("a kernel polls what its first product awaits", UNITS, "(MayPoll(slot) && !unit->steps.empty() &&", "(MayPoll(slot) &&",
           "a kernel holds its SMs while it has nothing to do"),
    Mutant("a lane is carried in part", KERNEL_STEPS, "if (copied.contains(", "if (false && copied.contains(",
           "a copy follows what a kernel sends, and does not wait for it"),
    Mutant("a group opens without some of its ranks", GROUP, "arrived_ == count_)", "arrived_ >= 1)",
           "a kernel waits for one that is not submitted"),
    Mutant("a group opens behind a failed rank", GROUP, "  withdrawn_ = true;\n", "", "kernels wait for one that is never submitted"),
    Mutant("a group that cannot open comes first", GROUP, "  Gate::Get().Forget(shared_from_this());\n", "", "calls that may block wait for it"),
    Mutant("plans are prepared beside open groups", EXECUTOR,
           "  const QuietLaunches quiet;\n  AGMM_RETURN_IF_ERROR(quiet.status());\n", "",
           "a driver's lock keeps a kernel from being submitted"),
    Mutant("a unit goes on behind an awaited product", UNITS, "slot.index}) < 1;", "slot.index}) < 0;",
           "a copy waits for later products, too"),
    Mutant("kernels that wait take all SMs", UNITS, "(self.sms - kSmsForOthers)", "self.sms",
           "work for which a kernel waits cannot run"),
    Mutant("a slot is stored before its data", RUN, "absl::Status CudaRun::PutUnit(const LaunchUnit& unit) {\n",
           "absl::Status CudaRun::PutUnit(const LaunchUnit& unit) {\n"
           "  if (!program_.steps[unit.steps[0]].signals.empty() && !program_.steps[unit.steps[0]].goes(0, Way::kThrough))\n"
           "    static_cast<void>(StoreSlot(gpu_, unit.steps[0], 0, prepared_.stream(unit.lane)));\n",
           "a kernel reads what has not arrived"),
    Mutant("epochs share the words of the host", "kernels/cuda/prepared.h", "words_->data() + run * LaunchWords::kBytes",
           "words_->data() + 0 * run", "a slot is raised to a later epoch"),
    Mutant("kernels of a failed epoch wait on", RUN, "  words_.Abort();\n", "",
           "a failed epoch does not end"),
    Mutant("one contributor", PRODUCTS, "send->contributors = contributors;", "send->contributors = contributors > 0;",
           "a slot is raised before the whole chunk is sent"),
    Mutant("sends share a counter", PREPARED, "counters_.emplace(send, static_cast<int>(counters_.size()))",
           "counters_.emplace(send, 0)", "a slot is raised by parts of another chunk"),
    Mutant("kernels send on shared GPUs", KERNEL_STEPS, "if (peer.tenants > 1) {", "if (false) {",
           "a kernel is behind one that waits for it"),
    Mutant("kernels send while copies wait for them", KERNEL_STEPS,
           "return IsAwaitedInEpoch(slot) && !IsAwaitedOnlyByJoins(slot);",
           "return false && IsAwaitedInEpoch(slot) && !IsAwaitedOnlyByJoins(slot);",
           "a kernel is behind a copy that waits for a kernel"),
    Mutant("kernels send what copies send on", KERNEL_STEPS, "(sent_on || found_[to].computed[index])", "true",
           "a copy waits for an event that no kernel records"),
    Mutant("a kernel is submitted before the copies", RUN, "!= unit.lane && NextUnit(lane) != nullptr) return false;",
           "!= unit.lane && false) return false;", "a copy is behind a kernel that waits for it"),
]

MUTANTS = [*RINGS, *ORDER, *MEMORY, *WORKS, *FAILURES, *KERNELS]
