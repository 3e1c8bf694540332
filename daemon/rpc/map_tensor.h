// Shards in place: a client of this host maps the memory itself, under a lease that lives as long as its
// MapTensor stream.
#pragma once

#include <atomic>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "agmm/v1/tensor.grpc.pb.h"
#include "daemon/call_context.h"
#include "daemon/rpc/file_socket.h"
#include "daemon/rpc/tensor_streams.h"
#include "daemon/tensor/access.h"
#include "daemon/tensor/store.h"

namespace agmm {

class MapTensorReactor;

// The mappings of this daemon's clients. Thread-safe.
class Mappings {
 public:
  // All outlive the streams. `node_names` by world rank.
  // A stream that has not begun its mapping within `silence` is ended.
  Mappings(const TransferParts& parts, TensorStore* store, std::vector<std::string> node_names,
           absl::Duration silence = kClientSilenceLimit);
  // Mappings are refused until then.
  void SetFiles(FileSocket* files) { files_ = files; }

  grpc::ServerBidiReactor<v1::MapTensorRequest, v1::MapTensorResponse>* Start(
      grpc::CallbackServerContext* context, CallContext call);

  // Ends those of the session; and all, as when their generation is over.
  void EndSession(const std::string& session_id);
  void EndAll(const absl::Status& why);

 private:
  friend class MapTensorReactor;
  // Counts a stream from its start; its session is known once it begins. Errors: RESOURCE_EXHAUSTED.
  absl::Status Add(MapTensorReactor* key, std::weak_ptr<MapTensorReactor> mapping);
  void SetSession(MapTensorReactor* key, const std::string& session_id);
  void Remove(MapTensorReactor* key);
  // OK where the shards of `tensor` can be mapped here: all of them to write, one to read.
  absl::Status CheckPlace(const v1::Tensor& tensor, bool writable) const;

  struct Open {
    std::string session_id;
    std::weak_ptr<MapTensorReactor> mapping;
  };
  const TransferParts parts_;
  TensorStore* const store_;
  const std::vector<std::string> node_names_;
  const absl::Duration silence_;
  std::atomic<FileSocket*> files_ = nullptr;
  std::mutex mutex_;
  std::map<MapTensorReactor*, Open> open_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace agmm
