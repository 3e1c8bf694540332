// The stream that keeps a session alive. Part of connection.cc.
#pragma once

#include <grpcpp/grpcpp.h>

#include <condition_variable>
#include <mutex>
#include <string>

#include "client/connection.h"

namespace agmm {

class Connection::Session final : public grpc::ClientReadReactor<v1::SessionEvent> {
 public:
  explicit Session(Connection* connection)
      : connection_(connection), call_(connection, absl::InfiniteFuture()) {}
  // Ends the session.
  ~Session() override;

  // At most once: the session's id.
  absl::StatusOr<std::string> Open(v1::ClusterService::Stub* stub, absl::Duration timeout);
  // The stream that kept it has ended.
  bool lost();

 private:
  enum class State { kOpening, kOpen, kDone };

  void OnReadDone(bool ok) override;
  void OnDone(const grpc::Status& status) override;
  void AwaitDone();

  Connection* const connection_;
  Call call_;
  bool started_ = false;  // of the thread that opens
  v1::SessionEvent event_, later_;
  std::mutex mutex_;
  std::condition_variable changed_;
  State state_ = State::kOpening;
  grpc::Status end_;
};

}  // namespace agmm
