// agmm: products and collectives of matrices that are sharded over the devices of a world of
// daemons.
//
//   auto connected = agmm::Client::Connect({.session = true});
//   if (!connected.ok()) return connected.status();
//   agmm::Client& client = **connected;
//   if (auto put = client.Put<float>("A", m, k, a, "[M_x, K]"); !put.ok()) return put.status();
//   if (auto put = client.Put<float>("B", k, n, b, "[K, N_x]"); !put.ok()) return put.status();
//   auto done = client.Run({.spec = "A[M_x, K] * B[K, N_x] -> C[M, N_x]",
//                           .a = "A", .b = "B", .c = "C"});
//   if (!done.ok()) return done.status();
//   return client.Get("C", c.data(), c.size() * 4).status();
//
// Matrices are row-major without padding, in host memory and on the wire. A tensor's sharding says
// how it is spread over the devices: "[M_x, K]" cuts the rows over mesh axis x and keeps the
// columns whole. Nothing throws, and callbacks must not throw. A timeout of zero stands for the one
// in ClientOptions.
//
// If the connection breaks, calls that are safe to repeat (reads, submits, cancels, deletes, puts)
// are repeated for about 10 s and then fail with UNAVAILABLE. A call to a daemon that never
// answered fails at once. When node 0's daemon ends, all tensors and jobs are lost: calls about
// them fail with ABORTED, PEER_LOST, and never reach another tensor or job with the same id. In a
// forked child all calls fail with FAILED_PRECONDITION; the parent is not affected.
#pragma once

#if __cplusplus < 202002L
#error "agmm.h needs C++20; compile with -std=c++20 or a later standard"
#endif

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <future>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <stop_token>
#include <string>
#include <type_traits>
#include <utility>
#include <variant>
#include <vector>

namespace agmm {

using Milliseconds = std::chrono::milliseconds;
using WallTime = std::chrono::system_clock::time_point;
class ClientState;
struct JobHandleState;
struct MappingState;

// ---- Status ----

// The codes of gRPC.
enum class StatusCode {
  kOk = 0,
  kCancelled = 1,  // by a request; or a call of a closed client
  kUnknown = 2,
  kInvalidArgument = 3,   // the request is wrong in any state of the world
  kDeadlineExceeded = 4,  // reason DEADLINE: the job's timeout; no reason: the call's
  kNotFound = 5,          // no tensor with this name, or no job with this id
  kAlreadyExists = 6,
  kPermissionDenied = 7,
  // Reason HEAP_FULL: device memory; the message has the bytes requested and the bytes free. Reason
  // TRANSFERS_FULL: the daemon's memory for transfers, for which the library waits 10 s. Reason
  // QUOTA_FULL: a bound on the queue, the sessions, the uploads or the remembered request ids, in
  // all or for this client; the message names it.
  kResourceExhausted = 8,
  // The tensor does not fit the spec or has no contents; or the client of a job handle or of a
  // mapping is closed.
  kFailedPrecondition = 9,
  kAborted = 10,  // reason PEER_LOST: a daemon was lost; submit again once it is back
  kOutOfRange = 11,
  kUnimplemented = 12,  // no planner for this job
  kInternal = 13,
  kUnavailable = 14,  // no daemon answers; reason WORLD_INCOMPLETE: it waits for other daemons
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
  // One line: the value, the bound, and the next action.
  const std::string& message() const { return message_; }
  // The reason, for programs: PEER_LOST, WORLD_INCOMPLETE, HEAP_FULL, TRANSFERS_FULL, QUOTA_FULL,
  // CANCELLED, DEADLINE, FILE_NOT_FOUND, or empty.
  const std::string& reason() const { return reason_; }
  std::string ToString() const;  // "NOT_FOUND: there is no tensor \"W\""

 private:
  StatusCode code_ = StatusCode::kOk;
  std::string message_, reason_;
};

// Prints `status` and ends the process, as Result::value() does for an error.
[[noreturn]] void FailWith(const Status& status);

// A T or an error.
template <typename T>
class [[nodiscard]] Result {
 public:
  Result(T value) : state_(std::in_place_index<1>, std::move(value)) {}
  Result(Status error) : state_(std::in_place_index<0>, std::move(error)) {}

  bool ok() const { return state_.index() == 1; }
  Status status() const { return ok() ? Status() : std::get<0>(state_); }
  // Requires ok(); otherwise the process ends.
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

// ---- Tensors ----

enum class ElementType { kF32, kBF16, kF16 };
int64_t BytesOf(ElementType type);  // per element: 4, 2, 2

// An element of type kBF16, the upper half of an f32, or kF16. The conversion from float rounds to
// nearest even, overflows to infinity, and keeps NaN. Whole vectors convert by their iterators:
// std::vector<BFloat16>(values.begin(), values.end()).
struct BFloat16 {
  BFloat16() = default;
  explicit BFloat16(float value);
  operator float() const;

  uint16_t bits = 0;
};
struct Float16 {
  Float16() = default;
  explicit Float16(float value);
  operator float() const;

  uint16_t bits = 0;
};

// The types of elements in memory: float for kF32, BFloat16, Float16.
template <typename T>
concept Element =
    std::is_same_v<T, float> || std::is_same_v<T, BFloat16> || std::is_same_v<T, Float16>;
template <Element T>
inline constexpr ElementType kTypeOf = std::is_same_v<T, float>      ? ElementType::kF32
                                       : std::is_same_v<T, BFloat16> ? ElementType::kBF16
                                                                     : ElementType::kF16;

struct TensorSpec {
  int64_t rows = 0, cols = 0;
  ElementType type = ElementType::kF32;
  // "[M_x, K]": rows cut over mesh axis x. "[K, N]": whole on every device of the mesh.
  std::string sharding = {};
  // Axes over devices: "x=4", "dp=2,tp=4". Empty: one axis x over `ranks`.
  std::string mesh = {};
  // The devices of the mesh, by rank. Empty: the first ones, as many as the mesh has, or all
  // devices if `mesh` is empty too. Other devices hold no part of the tensor.
  std::vector<int> ranks = {};
};

struct TensorInfo {
  uint64_t id = 0;  // ids start at 1 again when node 0's daemon restarts
  std::string name;
  TensorSpec spec;
  bool has_contents = false;
  int64_t shard_bytes = 0;  // on each rank of the mesh
  uint64_t version = 0;     // rises with every change of the contents
  std::string owner;        // who made it: the user of the socket, "uid:1000", or the client's host
  bool of_session = false;  // deleted when the client that made it ends
  // Stands for this very tensor wherever a call takes the name of an existing tensor; a name stands
  // for the tensor that has it at the time. Calls with it fail with NOT_FOUND once the tensor is
  // deleted or replaced, and with ABORTED, PEER_LOST once node 0's daemon has ended. A text that
  // any client of the world may use.
  std::string handle;
};

// Values generated on the devices from the seed and each element's row and column.
struct Filling {
  enum class Kind {
    kUniform,   // in [-1, 1)
    kIntegers,  // from -4 to 4, so that sums of their products are exact in f32
    kConstant,  // `value` everywhere
  };
  Kind kind = Kind::kUniform;
  uint64_t seed = 0;
  double value = 0;
};

struct TransferOptions {
  // Includes the wait for earlier jobs. Zero stands for ClientOptions::transfer_timeout.
  Milliseconds timeout{0};
  // Called about every MiB, on the thread of the call.
  std::function<void(int64_t moved_bytes, int64_t total_bytes)> progress = nullptr;
  // A stop request ends the transfer with CANCELLED, wherever it waits, except in a callback; a put
  // tells the daemon first, for 2 s at most. A put that is stopped fails like any other, but once
  // its last piece has been sent it may take effect nevertheless: the tensor's version shows this.
  std::stop_token stop = {};
};

// Writes bytes [offset, offset + size) of the contents to `into`, on the thread of the call.
// Offsets rise, but a broken connection repeats some, with the same bytes. An error ends the put.
using Reader = std::function<Status(int64_t offset_bytes, std::byte* into, int64_t size_bytes)>;
// Takes bytes [offset, offset + size), in order, on the thread of the call. An error ends the get.
using Writer =
    std::function<Status(int64_t offset_bytes, const std::byte* from, int64_t size_bytes)>;

// For the tensors of a file whose names match `pattern`, unless an earlier rule matches them.
struct LoadRule {
  // A glob: "*.up_proj.weight". "*" also matches dots and slashes.
  std::string pattern;
  // See TensorSpec; the sharding names the dimensions after `transpose`.
  std::string sharding = "[M, N]", mesh = {};
  std::vector<int> ranks = {};
  std::optional<ElementType> type = std::nullopt;  // absent: the file's
  // The tensor's name on the devices; "*" stands for the one in the file: "llama.*". Empty: the
  // same.
  std::string name = {};
  // Stores the transpose: a weight of torch, which is N x K (out x in), becomes a K x N tensor.
  bool transpose = false;
  bool skip = false;  // does not load the tensors
};

struct LoadOptions {
  // Requires that a rule matches each tensor, and each rule a tensor.
  bool strict = false;
  // `timeout` is for each tensor; `progress` counts the bytes of all.
  TransferOptions transfer = {};
};

// The tensors of a file after Client::Load.
struct LoadedFile {
  struct Loaded {
    std::string name_in_file;
    TensorInfo tensor;
    int64_t bytes = 0;   // on the devices, counted once for all copies
    double seconds = 0;  // of its upload
  };
  std::vector<Loaded> loaded;                // in the order of the file
  std::vector<std::string> skipped;          // names in the file, by a rule or without one
  std::vector<std::string> unused_patterns;  // that match no name in the file
};

struct SaveOptions {
  std::map<std::string, std::string> metadata = {};  // of a .safetensors file: {{"format", "pt"}}
  // `timeout` is for each tensor; `progress` counts the bytes of all.
  TransferOptions transfer = {};
};

// A tensor's shards in this process's memory: reads and writes there are reads and writes of the
// tensor. Until the mapping is detached, jobs and calls that write the tensor wait; if it is
// writable, readers wait too. The thread that holds the mapping must not wait for any of them, nor
// for another mapping, or two programs can wait for each other.
// Thread-safe, except for moves, the destructor, and tensor() during a Renew.
//
// A mapping is detached by Commit and Release, until Renew. It ends by Detach, with its client,
// session, world or daemon, and if the tensor is deleted, once it is detached. If a writable
// mapping ends while it is not detached, the tensor has no contents afterwards. Detached memory
// reads as NaN (behind 512 MiB of a shard as zero, and if Linux has no room for mappings, a use
// faults), and what is written to it is lost. A process that is stopped (SIGSTOP) keeps the space
// until it continues or ends. Forked children do not inherit mappings.
class Mapping {
 public:
  // Rows and columns [begin, end) of the tensor. Row r starts at data + (r - row_begin) *
  // pitch_bytes. A write to a read-only mapping raises SIGSEGV. If several ranks have copies of a
  // part, each copy is a shard, and a writer writes them all.
  struct Shard {
    int rank = 0;
    int64_t row_begin = 0, row_end = 0, col_begin = 0, col_end = 0;
    int64_t pitch_bytes = 0;
    std::byte* data = nullptr;
  };

  Mapping();  // no shards, detached; also the state after a move
  Mapping(Mapping&& other) noexcept;
  Mapping& operator=(Mapping&& other) noexcept;
  ~Mapping();  // calls Detach, and unmaps the memory

  const TensorInfo& tensor() const;  // when it was mapped, or renewed
  std::span<const Shard> shards() const;
  // False while the shards are the tensor's memory; else they read as NaN.
  bool detached() const;
  // OK, or why it is detached: it was committed or released, or has ended.
  Status status() const;

  // A mapping lasts over commits: Commit or Release lets jobs and other users of the tensor go on,
  // and Renew takes the tensor back, at the same addresses. Of these three, one call at a time;
  // another one is FAILED_PRECONDITION.
  //
  // Makes the shards the tensor's contents; no thread may be writing to them. They are detached
  // until Renew. Errors: FAILED_PRECONDITION if the mapping is read-only or detached by an earlier
  // Commit, or its client was destroyed; CANCELLED, ABORTED, NOT_FOUND or UNAVAILABLE if the
  // mapping had ended; DEADLINE_EXCEEDED if the outcome is not known: the mapping has ended, and
  // the tensor's version shows if the new contents took effect.
  Result<TensorInfo> Commit(Milliseconds timeout = {});
  // The same for a read-only mapping. Errors: those of Commit; FAILED_PRECONDITION if it is
  // writable.
  Result<TensorInfo> Release(Milliseconds timeout = {});
  // Waits for the users of the tensor so far; the shards then have its contents. Returns at once if
  // the mapping is not detached. Errors, after which the mapping has ended: NOT_FOUND for a deleted
  // tensor; FAILED_PRECONDITION for one without contents, if the mapping is read-only, or if its
  // client was destroyed; CANCELLED, ABORTED or UNAVAILABLE if the mapping had ended;
  // DEADLINE_EXCEEDED.
  Result<TensorInfo> Renew(Milliseconds timeout = {});

  // Ends the mapping, on any thread; the memory remains, as NaNs, until this object is destroyed.
  // A writable mapping leaves the tensor without contents, unless it was committed and not renewed.
  // Has no effect on a mapping that has ended. Waits for a Commit or a Release on another thread,
  // up to its timeout; ends a Renew.
  void Detach();
  // The same, but a writable mapping leaves the contents as they were. Nothing may have been
  // written to it, which is not checked. Waits for the daemon up to the timeout.
  void GiveBack(Milliseconds timeout = {});

 private:
  friend class Client;
  explicit Mapping(std::unique_ptr<MappingState> state);
  std::unique_ptr<MappingState> state_;
};

// ---- Jobs ----

struct JobRequest {
  // "A[M_x, K] * B[K, N_x] -> C[M, N_x]". The tensors' shardings must match the spec. C has the
  // type of A, or another one that the spec gives it: "C[M, N_x]:f32".
  std::string spec = {};
  // Names or handles of tensors; a new name for C makes a new one.
  std::string a = {}, b = {}, c = {};
  // In place of a, b and c, for specs with other operands: the tensors, by operand. A spec
  // without a product, "A[M_x, K] -> B[M, K]", gives a matrix another sharding: {{"A", "x"}, {"B",
  // "y"}}.
  std::map<std::string, std::string> tensors = {};
  std::string mesh = {};        // see TensorSpec
  std::vector<int> ranks = {};  // see TensorSpec
  std::string algorithm = {};   // "auto" or empty, or one that `agmmctl plan --help` names
  std::string split = {};       // axes that cut M, N and K: "M=x,N=y"; empty: chosen by the daemon
  // Pieces of a shard along M or N, and along K: at most 256; 0: chosen.
  int chunk_count = 0, k_chunk_count = 0;
  // Number of other ranks' shards, or of terms of a sum, that a rank has room for: at least 2; 0:
  // all.
  int workspace_shard_count = 0;
  bool carried = false;  // the multiply that reads a shard's tiles also sends them
  ElementType partials = ElementType::kF32;  // of terms of a sum that travel between devices
  int repeat_count = 1;     // how often the work is done, for measurements; at most 1,000,000
  Milliseconds timeout{0};  // to the job's end, at most a day; then DEADLINE_EXCEEDED; zero: 60 s
  bool ignore_tuning = false;  // chooses by prediction alone, without plans of `agmmctl tune`
};

enum class JobState { kQueued, kRunning, kSucceeded, kFailed, kCancelled };

// Times in microseconds; 0 if not known.
struct JobFigures {
  double time_us = 0;    // T: one product on its slowest rank; the median if it was repeated
  double gemm_us = 0;    // T_gemm: arithmetic alone, from the last serial run of the same problem
  double gather_us = 0;  // T_ag: the gather alone; the fastest one that was measured
  double flop_count = 0, tflops = 0, overlap = 0;  // overlap: R = max(T_gemm, T_ag) / T
  struct Moved {
    std::string path;   // "memory", "host memory" (staged between GPUs of a host) or "network"
    int64_t bytes = 0;  // per product
  };
  std::vector<Moved> moved;
  // The job that T_gemm comes from, this one or an earlier one; 0 if it is not known.
  // baseline_stale says why T_gemm and T_ag may no longer hold for this job; it is empty if they
  // do.
  uint64_t baseline_job = 0;
  std::string baseline_stale;
};

struct JobInfo {
  uint64_t id = 0;
  JobState state = JobState::kQueued;
  Status error;  // set in kFailed and kCancelled
  int64_t m = 0, n = 0, k = 0;
  ElementType type = ElementType::kF32;         // of the inputs
  ElementType result_type = ElementType::kF32;  // of C
  std::string split, algorithm, explanation;    // as it ran, and why
  std::string schedule;  // its algorithm, or "local" where nothing had to move
  int chunk_count = 0, k_chunk_count = 0, workspace_shard_count = 0, repeat_count = 0;
  bool carried = false;
  std::string spec, plan_hash, engine, transport, owner;
  std::vector<std::string> device_paths;     // how bytes travel between GPUs: "peer access", ...
  std::vector<std::string> device_products;  // kernels of GPUs: "agmm_product_bf16_bf16_256", ...
  std::optional<WallTime> create_time, start_time, end_time;
  JobFigures figures;  // set in kSucceeded
};

// A change of a job's state. Numbers start at 1 and rise.
struct JobEvent {
  int64_t number = 0;
  JobState state = JobState::kQueued;
  WallTime time;
  std::string message;
};

// A submitted job; copies are handles of the same job. When the client is destroyed, pending waits
// end with CANCELLED, and later calls with FAILED_PRECONDITION. Thread-safe, except assignment.
//
// Callbacks run one at a time on one thread of the client; after the client's end, at once on the
// caller's thread. Each callback runs once, at the latest while the client is destroyed; empty ones
// are skipped. Callbacks may make calls, but must not destroy the client. A callback that blocks
// delays the others, so prefer Then to Wait.
class JobHandle {
 public:
  JobHandle() = default;  // stands for no job; every call fails

  uint64_t id() const { return id_; }

  // Waits for the job to succeed, so that C has its contents. Zero stands for the job's timeout
  // plus a call's. Errors: the job's own, with a reason (ABORTED PEER_LOST, CANCELLED CANCELLED,
  // DEADLINE_EXCEEDED DEADLINE, ...); DEADLINE_EXCEEDED without a reason if the wait times out and
  // the job goes on; UNAVAILABLE if the daemon is lost.
  Result<JobInfo> Wait(Milliseconds timeout = {}) const;
  // Like Wait, but in the background, without a thread per wait.
  void Then(std::function<void(const Result<JobInfo>&)> callback, Milliseconds timeout = {}) const;
  std::future<Result<JobInfo>> Done(Milliseconds timeout = {}) const;

  // Calls `on_event` with each event numbered above `after_event`, in order, once, until it returns
  // false or the job ends; then calls `on_end` once, with the result of a Wait, or CANCELLED if
  // `on_event` returned false.
  void Watch(std::function<bool(const JobEvent&)> on_event,
             std::function<void(const Result<JobInfo>&)> on_end, int64_t after_event = 0,
             Milliseconds timeout = {}) const;

  // Returns the job in its current state, even if it failed. Errors: NOT_FOUND if the daemon no
  // longer keeps its record.
  Result<JobInfo> Info(Milliseconds timeout = {}) const;
  // Returns the times of the job's steps as a document in Chrome's trace event format, which
  // Perfetto reads: the last epoch of a job that has ended, or the one in progress. Errors:
  // FAILED_PRECONDITION if the job is queued, its times are no longer kept, or the daemons are of
  // another version.
  Result<std::string> Trace(Milliseconds timeout = {}) const;
  // Requests cancellation, without waiting for the job's end. OK if it has already ended.
  Status Cancel(Milliseconds timeout = {}) const;

 private:
  friend class ClientState;
  std::shared_ptr<const JobHandleState> state_;
  uint64_t id_ = 0;
};

// ---- The client ----

struct ClientOptions {
  // "unix:/path", "/path" or "host:port" of any daemon of the world. Empty: $AGMM_ENDPOINT, else
  // the local daemon's socket (like agmmctl).
  std::string endpoint = {};
  // The client's tensors are deleted and its jobs cancelled when it is destroyed, when its process
  // dies, and when the connection breaks (so calls are not repeated then).
  bool session = false;
  // A name for the session in lists, which add the process and the host: "train (pid 4711 on
  // host1)". At most 64 bytes of UTF-8. Empty: the name of the executable.
  std::string program = {};
  Milliseconds call_timeout = std::chrono::seconds(30);      // more than zero, both
  Milliseconds transfer_timeout = std::chrono::minutes(10);  // for puts, gets, fills, mappings
};

struct WorldDevice {
  int rank = 0;
  std::string node, kind;  // the node's name; "cpu" or "cuda"
  int64_t heap_bytes = 0, free_bytes = 0, largest_free_bytes = 0;
};

struct WorldInfo {
  std::string cluster, reason;
  std::string version;               // of the daemon that answered: "0.1.0 (1a2b3c4d5e6f)"
  uint64_t generation = 0;           // rises whenever a daemon joins or is lost
  bool ready = false;                // jobs can run; otherwise `reason` says why not
  std::vector<WorldDevice> devices;  // of the nodes that have joined
};

// A client that has a session, and what would end with it.
struct SessionInfo {
  uint64_t number = 0;  // rises; numbers start at 1 again when node 0's daemon restarts
  bool own = false;     // of the client that asked
  std::string owner;    // as in TensorInfo
  std::string program;  // see ClientOptions; empty if the client has given none
  std::string node;     // to whose daemon the client is connected
  WallTime open_time;
  // Deleted tensors count until their memory is free.
  int tensor_count = 0;
  int64_t tensor_bytes = 0;  // on all ranks together
  int job_count = 0;         // queued and running
};

// Thread-safe. Calls take effect in the order they are admitted: a get after a submit reads that
// job's C, and a put after a submit does not disturb the job. Names of tensors have 1 to 256 bytes
// of UTF-8. They contain neither ',' nor control characters, do not start with '#', and neither
// start nor end with a space. Get, Map, Find, Delete, Save and jobs take a TensorInfo::handle in
// place of a name.
class Client {
 public:
  // Requires that this daemon answers; the world need not be complete. Errors: INVALID_ARGUMENT;
  // UNAVAILABLE.
  static Result<std::unique_ptr<Client>> Connect(ClientOptions options = {});
  // Closes the client.
  ~Client();
  // Ends calls in progress and mappings, and waits for the callbacks. Later calls fail with
  // CANCELLED, and those of job handles and mappings with FAILED_PRECONDITION. Must not run in a
  // callback.
  void Close();
  Client(const Client&) = delete;
  Client& operator=(const Client&) = delete;

  // The daemon's address, for other clients: "unix:/run/agmm/agmmd.sock" or "10.0.0.1:7101". Also
  // of a closed client.
  const std::string& endpoint() const;

  Result<WorldInfo> World(Milliseconds timeout = {});
  // Returns the open sessions of all clients of the world, oldest first.
  Result<std::vector<SessionInfo>> Sessions(Milliseconds timeout = {});

  // Writes the whole contents. Rewrites the tensor called `name` if it has this spec, else makes a
  // new one, which takes the name once it is complete. If a put fails, a tensor that was being
  // rewritten has no contents; a tensor that would have been replaced keeps its contents.
  //   data: rows x cols elements of spec.type, row-major; size_bytes must be exactly their size.
  // Errors: INVALID_ARGUMENT; FAILED_PRECONDITION if `name` belongs to another session or, in one,
  // to a permanent tensor of another spec; RESOURCE_EXHAUSTED; UNAVAILABLE; DEADLINE_EXCEEDED.
  Result<TensorInfo> Put(const std::string& name, const TensorSpec& spec, const void* data,
                         int64_t size_bytes, const TransferOptions& options = {});
  Result<TensorInfo> Put(const std::string& name, const TensorSpec& spec, const Reader& reader,
                         const TransferOptions& options = {});
  // Put<float>("A", m, k, a, "[M_x, K]"): the tensor has the type of the elements, and the mesh of
  // all devices. `values` are row-major.
  template <Element T>
  Result<TensorInfo> Put(const std::string& name, int64_t rows, int64_t cols,
                         std::span<const T> values, const std::string& sharding,
                         const TransferOptions& options = {}) {
    const TensorSpec spec = {.rows = rows, .cols = cols, .type = kTypeOf<T>, .sharding = sharding};
    return Put(name, spec, values.data(), static_cast<int64_t>(values.size_bytes()), options);
  }
  // Like Put, with values generated on the devices. Never repeated after a broken connection.
  Result<TensorInfo> Fill(const std::string& name, const TensorSpec& spec, const Filling& filling,
                          Milliseconds timeout = {});
  // Reserves space for contents to be written later. Errors: ALREADY_EXISTS; RESOURCE_EXHAUSTED.
  Result<TensorInfo> Create(const std::string& name, const TensorSpec& spec,
                            Milliseconds timeout = {});

  // Reads the whole contents of one version; sizes as for Put. Errors: NOT_FOUND; INVALID_ARGUMENT;
  // FAILED_PRECONDITION for a tensor without contents.
  Result<TensorInfo> Get(const std::string& name, void* data, int64_t size_bytes,
                         const TransferOptions& options = {});
  Result<TensorInfo> Get(const std::string& name, const Writer& writer,
                         const TransferOptions& options = {});

  // Get<float>("C", c): fails with INVALID_ARGUMENT, too, if the tensor has elements of another
  // type. Without `into`, returns a vector of all elements; RESOURCE_EXHAUSTED if it does not fit
  // into memory.
  template <Element T>
  Result<TensorInfo> Get(const std::string& name, std::span<T> into,
                         const TransferOptions& options = {}) {
    return GetElements(
        name, kTypeOf<T>, [into](int64_t) { return std::as_writable_bytes(into); }, options);
  }
  template <Element T>
  Result<std::vector<T>> Get(const std::string& name, const TransferOptions& options = {}) {
    std::vector<T> values;
    const auto room = [&values](int64_t count) {
      values.resize(count);
      return std::as_writable_bytes(std::span<T>(values));
    };
    const Result<TensorInfo> got = GetElements(name, kTypeOf<T>, room, options);
    if (!got.ok()) return got.status();
    return values;
  }

  // Like Put and Get, on threads of the library, which are also those of the callbacks. Up to 8
  // transfers run at once, and others begin in the order of the calls. While all that have begun
  // wait, for a job, a mapping or in a callback, another one begins every 500 ms: it may be the one
  // that they wait for. A stop request removes a transfer that has not begun, at once. The data
  // must live, and must not be touched, until the future is ready. It is ready at the latest when
  // the client has been closed, with CANCELLED if the transfer had not begun or was in progress. A
  // call takes its place in the order of admission at any time before its future is ready, so wait
  // for a put before a job that reads its tensor. Errors, in the future: RESOURCE_EXHAUSTED if no
  // thread can be started.
  std::future<Result<TensorInfo>> PutAsync(std::string name, TensorSpec spec, const void* data,
                                           int64_t size_bytes, TransferOptions options = {});
  std::future<Result<TensorInfo>> PutAsync(std::string name, TensorSpec spec, Reader reader,
                                           TransferOptions options = {});
  std::future<Result<TensorInfo>> GetAsync(std::string name, void* data, int64_t size_bytes,
                                           TransferOptions options = {});
  std::future<Result<TensorInfo>> GetAsync(std::string name, Writer writer,
                                           TransferOptions options = {});

  // Loads tensors of a .safetensors or .npy file, one after the other, in a few MiB of memory (40
  // MiB to transpose). A tensor of one dimension is a matrix of one row. The one of an .npy file is
  // called like the file, without ".npy". All tensors are checked before the first is put, as with
  // Put. If one fails, the error names it and those loaded before, which stay. A pipe is read to
  // the end of its tensors first, into a temporary file in $TMPDIR, unless its header is wrong; a
  // stop request ends this, too. Errors: INVALID_ARGUMENT for a file that its format does not
  // allow, for a tensor of the rules whose type is not F32, F16 or BF16 or that has more than two
  // dimensions, and for rules that load nothing; DATA_LOSS if the file changes meanwhile; those of
  // Put.
  Result<LoadedFile> Load(const std::string& path, const std::vector<LoadRule>& rules,
                          const LoadOptions& options = {});
  // Saves tensors, each in one version, under their names. The file appears when it is complete. An
  // .npy file takes one tensor, and bf16 as f32. Returns the tensors in the order of the file: f32
  // first, then as given. Errors: INVALID_ARGUMENT; RESOURCE_EXHAUSTED for a full disk; those of
  // Get, with the tensor's name.
  Result<std::vector<TensorInfo>> Save(const std::string& path,
                                       const std::vector<std::string>& names,
                                       const SaveOptions& options = {});

  // Maps the shards on the connected daemon's devices, over its unix socket, after the jobs before.
  // A writable mapping starts with the old contents, if any. Never repeated. Errors: NOT_FOUND;
  // FAILED_PRECONDITION over TCP, for shards on other nodes (any, to write; all, to read), or to
  // read a tensor without contents; RESOURCE_EXHAUSTED; DEADLINE_EXCEEDED; UNAVAILABLE; CANCELLED
  // after a stop request, which leaves the contents as they were.
  Result<Mapping> Map(const std::string& name, bool writable, Milliseconds timeout = {},
                      std::stop_token stop = {});

  Result<std::vector<TensorInfo>> List(Milliseconds timeout = {});
  Result<TensorInfo> Find(const std::string& name, Milliseconds timeout = {});  // or NOT_FOUND
  // Frees the name at once, and the space once no job uses it. Errors: NOT_FOUND.
  Status Delete(const std::string& name, Milliseconds timeout = {});

  // Submits exactly one job, even if the connection breaks. If node 0's daemon restarts meanwhile,
  // the job is submitted to the new daemon, provided that it has the tensors. A stop request ends
  // the call with CANCELLED, and cancels the job as soon as the daemon answers, whether it has been
  // submitted or not. Errors: INVALID_ARGUMENT; FAILED_PRECONDITION if the tensors do not fit the
  // spec; UNIMPLEMENTED; UNAVAILABLE with the names of missing nodes.
  Result<JobHandle> Submit(const JobRequest& request, Milliseconds timeout = {},
                           std::stop_token stop = {});
  // Submits and waits in one call; `timeout` is that of a Wait. Made for many small jobs, because
  // runs that start at about the same time share messages. Runs are admitted in order, when the
  // queue has room for jobs of this owner. Wait for the end of a run before other calls use its
  // tensors. `on_end` follows the rules for callbacks in JobHandle. A stop request cancels the job,
  // after which the run ends. To watch a job, use Submit.
  void Run(const JobRequest& request, std::function<void(const Result<JobInfo>&)> on_end,
           Milliseconds timeout = {}, std::stop_token stop = {});
  Result<JobInfo> Run(const JobRequest& request, Milliseconds timeout = {});
  // Must not be waited for in a callback.
  std::future<Result<JobInfo>> RunAsync(const JobRequest& request, Milliseconds timeout = {},
                                        std::stop_token stop = {});
  // Returns a job of any client. Errors: NOT_FOUND.
  Result<JobHandle> FindJob(uint64_t id, Milliseconds timeout = {});
  // At most `limit` jobs, newest first.
  Result<std::vector<JobInfo>> Jobs(int limit = 100, Milliseconds timeout = {});

 private:
  explicit Client(std::shared_ptr<ClientState> state);
  // `room` returns the memory for that many elements.
  Result<TensorInfo> GetElements(const std::string& name, ElementType type,
                                 const std::function<std::span<std::byte>(int64_t count)>& room,
                                 const TransferOptions& options);

  std::shared_ptr<ClientState> state_;
};

}  // namespace agmm
