// agmm: products of matrices that stay, sharded, on the devices of a world of daemons.
//
//   auto client = agmm::Client::Connect({.session = true});
//   if (!client.ok()) return Fail(client.status());
//   (*client)->Put("A", {.rows = m, .cols = k, .sharding = "[M_x, K]"}, a.data(), a.size() * 4);
//   (*client)->Put("B", {.rows = k, .cols = n, .sharding = "[K, N_x]"}, b.data(), b.size() * 4);
//   auto done = (*client)->Run({.spec = "A[M_x, K] * B[K, N_x] -> C[M, N_x]", .a = "A", .b = "B",
//   .c = "C"}); if (!done.ok()) return Fail(done.status());
//   (*client)->Get("C", c.data(), c.size() * 4);
//
// Matrices are row-major without padding, in host memory as on the wire; a tensor's sharding says
// how its rows and columns are spread over the devices: "[M_x, K]": rows over mesh axis x, columns
// not at all. Nothing throws. Every call has a deadline; a timeout of zero stands for the one in
// ClientOptions.
//
// When the connection to the daemon breaks, calls that are safe to repeat (reads, submits, cancels,
// deletes, puts that go on where they were) are repeated for about 10 s; then they fail with
// UNAVAILABLE. A daemon that was never there fails at once. With node 0's daemon go all tensors and
// jobs: what was about one of them fails with ABORTED, PEER_LOST, and never meets another that has
// its id.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <future>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <variant>
#include <vector>

namespace agmm {

using Milliseconds = std::chrono::milliseconds;
using WallTime = std::chrono::system_clock::time_point;
class ClientImpl;
struct JobHandleState;
struct MappingState;

// ---- Status
// ------------------------------------------------------------------------------------------

// The codes of gRPC.
enum class StatusCode {
  kOk = 0,
  kCancelled = 1,
  kUnknown = 2,
  kInvalidArgument = 3,   // what was asked makes no sense, whatever the state of the world
  kDeadlineExceeded = 4,  // of a job with reason DEADLINE, of a call without
  kNotFound = 5,          // no tensor of this name, no job of this id
  kAlreadyExists = 6,
  kPermissionDenied = 7,
  kResourceExhausted = 8,  // the devices' memory; the message says asked, free, largest free
  kFailedPrecondition =
      9,          // a tensor that does not fit the spec or has no contents; a client that is gone
  kAborted = 10,  // reason PEER_LOST: a daemon went while the job ran; submit again when it is back
  kOutOfRange = 11,
  kUnimplemented = 12,  // no planner for this product
  kInternal = 13,
  kUnavailable = 14,  // no daemon; with reason WORLD_INCOMPLETE: it waits for others
  kDataLoss = 15,
  kUnauthenticated = 16,
};

class [[nodiscard]] Status {
 public:
  Status() = default;  // OK
  Status(StatusCode code, std::string message, std::string reason = "")
      : code_(code), message_(std::move(message)), reason_(std::move(reason)) {}

  bool ok() const { return code_ == StatusCode::kOk; }
  StatusCode code() const { return code_; }
  // One line: the value, the bound, and what to do.
  const std::string& message() const { return message_; }
  // For programs: PEER_LOST, WORLD_INCOMPLETE, HEAP_FULL, CANCELLED, DEADLINE, or empty.
  const std::string& reason() const { return reason_; }
  std::string ToString() const;  // "NOT_FOUND: there is no tensor \"W\""

 private:
  StatusCode code_ = StatusCode::kOk;
  std::string message_, reason_;
};

[[noreturn]] void FailWith(
    const Status& status);  // prints it and ends the process, as value() of an error

// A T, or the error why there is none.
template <typename T>
class [[nodiscard]] Result {
 public:
  Result(T value) : state_(std::in_place_index<1>, std::move(value)) {}
  Result(Status error) : state_(std::in_place_index<0>, std::move(error)) {}

  bool ok() const { return state_.index() == 1; }
  Status status() const { return ok() ? Status() : std::get<0>(state_); }
  // Not of an error: that ends the process.
  T& value() & { return Check(), std::get<1>(state_); }
  const T& value() const& { return Check(), std::get<1>(state_); }
  T&& value() && { return Check(), std::get<1>(std::move(state_)); }
  T& operator*() & { return value(); }
  const T& operator*() const& { return value(); }
  T&& operator*() && { return std::move(*this).value(); }
  T* operator->() { return &value(); }
  const T* operator->() const { return &value(); }

 private:
  void Check() const {
    if (!ok()) FailWith(std::get<0>(state_));
  }
  std::variant<Status, T> state_;
};

// ---- Tensors
// -----------------------------------------------------------------------------------------

enum class ElementType { kF32, kBF16, kF16 };
int64_t BytesOf(ElementType type);  // of an element: 4, 2, 2

// bf16 is the upper half of an f32. Rounds to nearest even; NaN stays NaN; out of range becomes
// infinity.
std::vector<uint16_t> ToBF16(std::span<const float> values);
std::vector<float> FromBF16(std::span<const uint16_t> values);

struct TensorSpec {
  int64_t rows = 0, cols = 0;
  ElementType type = ElementType::kF32;
  // "[M_x, K]": rows over mesh axis x. "[K, N]": whole on every device of the mesh.
  std::string sharding = {};
  // Axes over devices: "x=4", "dp=2,tp=4". Empty: "x=" all `ranks`.
  std::string mesh = {};
  // The devices of the mesh, by their rank in the world. Empty: the first ones, as many as the mesh
  // has; all where `mesh` is empty, too. Others hold nothing of the tensor.
  std::vector<int> ranks = {};
};

struct TensorInfo {
  uint64_t id = 0;  // ids begin at 1 again when node 0's daemon is restarted
  std::string name;
  TensorSpec spec;
  bool has_contents = false;
  int64_t shard_bytes = 0;  // on each rank of the mesh
  uint64_t version = 0;     // rises with each change of the contents
  std::string owner;
  bool of_session = false;  // goes away with the client that made it
};

// Values that are made on the devices. They depend on the seed and an element's place in the tensor
// alone.
struct Filling {
  enum class Kind {
    kUniform,   // in [-1, 1)
    kIntegers,  // from -4 to 4: sums of their products are exact in f32
    kConstant,  // `value` everywhere
  };
  Kind kind = Kind::kUniform;
  uint64_t seed = 0;
  double value = 0;
};

struct TransferOptions {
  // With the wait for the jobs before it. Zero: ClientOptions::transfer_timeout.
  Milliseconds timeout{0};
  // Told, on the calling thread, after about every MiB.
  std::function<void(int64_t moved_bytes, int64_t total_bytes)> progress = nullptr;
};

// Fills bytes [offset, offset + size) of a tensor's contents in. Runs on the calling thread;
// offsets rise, but for a broken connection: then bytes are asked for again, and must be the same.
// An error ends the put.
using Reader = std::function<Status(int64_t offset_bytes, std::byte* into, int64_t size_bytes)>;
// Takes bytes [offset, offset + size), in order, each once, on the calling thread. An error ends
// the get.
using Writer =
    std::function<Status(int64_t offset_bytes, const std::byte* from, int64_t size_bytes)>;

// A tensor's shards in this process's own memory: what is read and written there is the tensor.
// Meanwhile what would write the tensor waits, for a writable one also what would read it; its
// holder must not wait for such a job. Thread-safe, but for moves, the end, and what is done with
// the memory.
//
// It is detached by its commit, and when its client, session, world or daemon ends; a writable one
// without a commit then leaves the tensor without contents. The memory stays here but reads zeros,
// writes reach nobody, and only then is the space another's: a stopped process keeps it. A forked
// child has none of it.
class Mapping {
 public:
  // Rows and columns [begin, end) of the tensor. Row r begins at data + (r - row_begin) *
  // pitch_bytes, its elements side by side. To write where the mapping is not writable is a fault.
  struct Shard {
    int rank = 0;
    int64_t row_begin = 0, row_end = 0, col_begin = 0, col_end = 0;
    int64_t pitch_bytes = 0;
    std::byte* data = nullptr;
  };

  Mapping();  // of nothing: no shards, detached; as one that was moved from
  Mapping(Mapping&& other) noexcept;
  Mapping& operator=(Mapping&& other) noexcept;
  ~Mapping();  // ends it; the memory is gone

  const TensorInfo& tensor() const;  // as it was mapped
  std::span<const Shard> shards() const;
  bool detached() const;
  // Makes what the shards hold the contents, and detaches. Once; nobody may be writing there.
  // Errors: FAILED_PRECONDITION for one that is read-only or committed, or whose client is gone;
  // CANCELLED, ABORTED or UNAVAILABLE for one that was detached before; DEADLINE_EXCEEDED:
  // detached, and the tensor's version says whether the new contents count.
  Result<TensorInfo> Commit(Milliseconds timeout = {});

 private:
  friend class Client;
  explicit Mapping(std::unique_ptr<MappingState> state);
  std::unique_ptr<MappingState> state_;
};

// ---- Jobs
// --------------------------------------------------------------------------------------------

struct JobRequest {
  // "A[M_x, K] * B[K, N_x] -> C[M, N_x]". The shardings of the tensors must be the spec's.
  std::string spec = {};
  // Names of tensors. A name for C that no tensor has is given to a new one, as the spec wants it.
  std::string a = {}, b = {}, c = {};
  // As in TensorSpec.
  std::string mesh = {};
  std::vector<int> ranks = {};
  // "auto", "serial", "ring", "direct" or "peer"; empty is auto. Pieces a shard travels in; 0:
  // chosen.
  std::string algorithm = {};
  int chunk_count = 0;
  // How often the product is computed; for measurements.
  int repeat_count = 1;
  // From admission to the end; then the job fails with DEADLINE_EXCEEDED. Zero: 60 s.
  Milliseconds timeout{0};
};

enum class JobState { kQueued, kRunning, kSucceeded, kFailed, kCancelled };

// Times are microseconds; 0 where not known.
struct JobFigures {
  double time_us = 0;  // T: one product on its slowest rank, the median where it was repeated
  double gemm_us = 0;  // T_gemm: the arithmetic alone, from the last serial run of the same problem
  double gather_us = 0;  // T_ag: the gather alone, from the same run
  double flop_count = 0;
  double tflops = 0;
  double overlap = 0;  // R = max(T_gemm, T_ag) / T; 1 is perfect
  struct Moved {
    std::string path;   // "memory": within a host; "network": between hosts
    int64_t bytes = 0;  // of one product
  };
  std::vector<Moved> moved;
};

struct JobInfo {
  uint64_t id = 0;
  JobState state = JobState::kQueued;
  Status error;  // why, in kFailed and kCancelled
  std::string spec;
  int64_t m = 0, n = 0, k = 0;
  ElementType type = ElementType::kF32;
  std::string algorithm, explanation;  // what ran, and why it was chosen
  int chunk_count = 0, repeat_count = 0;
  std::string plan_hash, engine, transport, owner;
  std::optional<WallTime> create_time, start_time, end_time;
  JobFigures figures;  // in kSucceeded
};

// One edge of a job's state. Numbers begin at 1 and rise.
struct JobEvent {
  int64_t number = 0;
  JobState state = JobState::kQueued;
  WallTime time;
  std::string message;
};

// A submitted job. A small value: copies are the same job. May outlive its client; then every call
// fails with FAILED_PRECONDITION, and what was pending has ended with CANCELLED. Thread-safe, but
// for assignment.
//
// Callbacks run one by one on one thread of the client; once it is gone, at once on the caller's.
// They may call all of this header, but what blocks there holds up those behind it; a Wait is
// better a Then. They must not throw or destroy the client. Each runs exactly once, at the latest
// while the client is destroyed.
class JobHandle {
 public:
  JobHandle() = default;  // no job: every call fails

  uint64_t id() const { return id_; }

  // Waits until the job has succeeded. OK means that C is there.
  // Errors: the job's own, with a reason (ABORTED PEER_LOST, CANCELLED CANCELLED, DEADLINE_EXCEEDED
  // DEADLINE, ...); DEADLINE_EXCEEDED without one when it runs longer than `timeout`, and then goes
  // on; UNAVAILABLE when the daemon is lost. Zero: the job's own timeout and a call's.
  Result<JobInfo> Wait(Milliseconds timeout = {}) const;
  // The same, without waiting. `timeout` bounds the wait in the background, which takes no thread.
  void Then(std::function<void(const Result<JobInfo>&)> callback, Milliseconds timeout = {}) const;
  std::future<Result<JobInfo>> Done(Milliseconds timeout = {}) const;

  // Calls `on_event` with each event above `after_event`, in order, each once, as they happen,
  // until it returns false or the job has ended; then `on_end`, once, with what Wait would return,
  // or CANCELLED after a false. Takes no thread.
  void Watch(std::function<bool(const JobEvent&)> on_event,
             std::function<void(const Result<JobInfo>&)> on_end, int64_t after_event = 0,
             Milliseconds timeout = {}) const;

  // The job as it is, also a failed one. Errors: NOT_FOUND when it is no longer remembered.
  Result<JobInfo> Info(Milliseconds timeout = {}) const;
  // Asks for its end, and does not wait for it. OK if it has already ended.
  Status Cancel(Milliseconds timeout = {}) const;

 private:
  friend class ClientImpl;
  std::shared_ptr<const JobHandleState> state_;
  uint64_t id_ = 0;
};

// ---- The client
// --------------------------------------------------------------------------------------

struct ClientOptions {
  // "unix:/path", "/path" or "host:port" of any daemon of the world; empty: $AGMM_ENDPOINT, else
  // the local daemon's socket (as agmmctl).
  std::string endpoint = {};
  // The client's tensors and jobs end with it, however it ends: also when its process is killed.
  // They also end when the connection breaks, so that nothing is repeated then.
  bool session = false;
  Milliseconds call_timeout = std::chrono::seconds(30);
  // Of puts, gets, fills and mappings.
  Milliseconds transfer_timeout = std::chrono::minutes(10);
};

struct WorldDevice {
  int rank = 0;
  std::string node, kind;  // the name of its node; "cpu"
  int64_t heap_bytes = 0, free_bytes = 0, largest_free_bytes = 0;
};

struct WorldInfo {
  std::string cluster, version;
  uint64_t generation = 0;  // rises whenever a daemon comes or goes
  bool ready = false;       // jobs can run; else `reason` says why not
  std::string reason;
  std::vector<WorldDevice> devices;  // of the nodes that are there
};

// Thread-safe. Names are resolved when a call is admitted: a get behind a submit sees its C, and a
// put behind a submit does not disturb it. They are UTF-8 of at most 256 bytes, without ',' and no
// '#' in front.
class Client {
 public:
  // Finds the daemon; the rest of the world need not be there. Errors: INVALID_ARGUMENT,
  // UNAVAILABLE.
  static Result<std::unique_ptr<Client>> Connect(ClientOptions options = {});
  // Ends the calls in progress and the mappings, and waits for them and the callbacks. Not from a
  // callback.
  ~Client();
  Client(const Client&) = delete;
  Client& operator=(const Client&) = delete;

  Result<WorldInfo> World(Milliseconds timeout = {});

  // Writes the whole contents. Where `name` stands for a tensor of this spec, rewrites that one, in
  // its turn, which lasts as long as before; else makes a new tensor, which takes the name once its
  // contents are whole.
  //   data: rows x cols elements of spec.type, row-major; size_bytes must be exactly theirs.
  // Errors: INVALID_ARGUMENT; FAILED_PRECONDITION for the name of another session's tensor or, in a
  // session, of a lasting one of another spec; RESOURCE_EXHAUSTED; UNAVAILABLE; DEADLINE_EXCEEDED.
  // A put that failed leaves what had the name as it was where the put would have made a new
  // tensor, else without contents.
  Result<TensorInfo> Put(const std::string& name, const TensorSpec& spec, const void* data,
                         int64_t size_bytes, const TransferOptions& options = {});
  Result<TensorInfo> Put(const std::string& name, const TensorSpec& spec, const Reader& reader,
                         const TransferOptions& options = {});
  // The same, with values that are made on the devices. Never repeated.
  Result<TensorInfo> Fill(const std::string& name, const TensorSpec& spec, const Filling& filling,
                          Milliseconds timeout = {});
  // Reserves space; the contents are undefined until a put, a fill or a job writes them.
  // Errors: ALREADY_EXISTS; RESOURCE_EXHAUSTED.
  Result<TensorInfo> Create(const std::string& name, const TensorSpec& spec,
                            Milliseconds timeout = {});

  // Reads the whole contents, of one version: rows x cols elements, row-major; size_bytes must be
  // exactly theirs. Errors: NOT_FOUND; INVALID_ARGUMENT; FAILED_PRECONDITION for a tensor without
  // contents.
  Result<TensorInfo> Get(const std::string& name, void* data, int64_t size_bytes,
                         const TransferOptions& options = {});
  Result<TensorInfo> Get(const std::string& name, const Writer& writer,
                         const TransferOptions& options = {});

  // Opens the shards that lie on the connected daemon's devices, in their turn: waits as a put
  // (writable) or a get does. Never repeated. A writable one holds the old contents, or anything
  // where there are none. Errors: NOT_FOUND; FAILED_PRECONDITION over TCP, for shards on other
  // nodes (any, to write; all, to read), and to read a tensor without contents; RESOURCE_EXHAUSTED;
  // DEADLINE_EXCEEDED; UNAVAILABLE.
  Result<Mapping> Map(const std::string& name, bool writable, Milliseconds timeout = {});

  Result<std::vector<TensorInfo>> List(Milliseconds timeout = {});
  // Errors: NOT_FOUND.
  Result<TensorInfo> Find(const std::string& name, Milliseconds timeout = {});
  // The name is free at once, the space when no job uses it any more. Errors: NOT_FOUND.
  Status Delete(const std::string& name, Milliseconds timeout = {});

  // Admits a job. However often the connection breaks meanwhile, it is one job; where node 0's
  // daemon, and the job with it, goes meanwhile, one of the next, too, if that has the tensors.
  // Errors: INVALID_ARGUMENT for a spec that means nothing; FAILED_PRECONDITION for tensors that do
  // not fit it; UNIMPLEMENTED; UNAVAILABLE while the world is not complete, naming who is missing.
  Result<JobHandle> Submit(const JobRequest& request, Milliseconds timeout = {});
  // Submit and Wait in one, with their errors; `on_end` is called as those of JobHandle. For many
  // small jobs: those that are asked for, or end, at about one time travel together. Admitted in
  // the order of the Runs; before other calls that use its tensors, wait for its end. `timeout` is
  // a Wait's. For a job to be watched or cancelled, Submit.
  void Run(const JobRequest& request, std::function<void(const Result<JobInfo>&)> on_end,
           Milliseconds timeout = {});
  Result<JobInfo> Run(const JobRequest& request, Milliseconds timeout = {});
  // A job that someone has submitted. Errors: NOT_FOUND.
  Result<JobHandle> FindJob(uint64_t id, Milliseconds timeout = {});
  // Newest first, at most `limit`.
  Result<std::vector<JobInfo>> Jobs(int limit = 100, Milliseconds timeout = {});

 private:
  explicit Client(std::unique_ptr<ClientImpl> impl);
  std::unique_ptr<ClientImpl> impl_;
};

}  // namespace agmm
