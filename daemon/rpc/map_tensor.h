// Shards in place: a client of this host maps the memory itself, under a lease that lives as long
// as its MapTensor stream, and longer where the client has not let go by then.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "agmm/v1/peer.pb.h"
#include "agmm/v1/tensor.grpc.pb.h"
#include "daemon/call_context.h"
#include "daemon/rpc/file_socket.h"
#include "daemon/rpc/tensor_streams.h"
#include "daemon/tensor/access.h"
#include "daemon/tensor/store.h"

namespace agmm {

// One mapping, as their list knows it. Thread-safe.
class OpenMapping {
 public:
  virtual ~OpenMapping() = default;
  virtual void Fail(absl::Status why) = 0;
  // The memory that its client may still have mapped although its generation is over; on the loop,
  // which also reports its release. Nothing: none.
  virtual std::optional<v1::MemoryHeld> Held() = 0;
};

// The mappings of this daemon's clients. Thread-safe.
class Mappings {
 public:
  using ReportFn = std::function<void(v1::Report)>;

  // All outlive the streams. `node_names` by world rank.
  // A stream that has not begun its mapping within `silence` is ended.
  Mappings(const TransferParts& parts, TensorStore* store, std::vector<std::string> node_names,
           absl::Duration silence = kClientSilenceLimit);
  // Mappings are refused until then. `files` goes before this object.
  void SetFiles(FileSocket* files) { files_ = files; }
  // Told of memory that clients do not let go of, and of its release. On the loop. Set before the
  // first.
  void OnReport(ReportFn report) { report_ = std::move(report); }

  grpc::ServerBidiReactor<v1::MapTensorRequest, v1::MapTensorResponse>* Start(
      grpc::CallbackServerContext* context, CallContext call);

  // Ends those of the session; and all, as when their generation is over. What their clients still
  // have mapped keeps its lease, or is in Held().
  void EndSession(const std::string& session_id);
  void EndAll(const absl::Status& why);

  // What clients still have mapped of the generations before. On the loop.
  std::vector<v1::MemoryHeld> Held();
  // Streams that are open, and mappings that their clients have not let go of.
  size_t count();

 private:
  friend class MapTensorReactor;
  // Counts a mapping from the start of its stream; its session is known once it begins.
  // Errors: RESOURCE_EXHAUSTED.
  absl::Status Add(OpenMapping* key, std::weak_ptr<OpenMapping> mapping);
  void SetSession(OpenMapping* key, const std::string& session_id);
  void Remove(OpenMapping* key);
  // OK where the shards of `tensor` can be mapped here: all of them to write, one to read.
  absl::Status CheckPlace(const v1::Tensor& tensor, bool writable) const;
  // Those of the session; all without one.
  std::vector<std::shared_ptr<OpenMapping>> Of(const std::optional<std::string>& session_id);

  struct Open {
    std::string session_id;
    std::weak_ptr<OpenMapping> mapping;
  };
  const TransferParts parts_;
  TensorStore* const store_;
  const std::vector<std::string> node_names_;
  const absl::Duration silence_;
  std::atomic<FileSocket*> files_ = nullptr;
  std::atomic<uint64_t> next_hold_ = 1;
  ReportFn report_ = [](const v1::Report&) {};
  std::mutex mutex_;
  std::map<OpenMapping*, Open> open_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace agmm
