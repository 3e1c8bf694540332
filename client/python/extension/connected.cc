#include "extension/connected.h"

#include <utility>

#include "extension/gil.h"
#include "extension/raise.h"

namespace agmm::python {

Connected::Connected(std::unique_ptr<Client> client) : client_(std::move(client)) {
  Remember(client_);
}

Connected::~Connected() {
  if (Ended()) {  // a close might wait for a callback, which needs the GIL
    static_cast<void>(new std::shared_ptr<Client>(std::move(client_)));
    return;
  }
  Forget(client_.get());
  if (InCallback() && Detach([client = client_] { client->Close(); }).ok()) return;
  const ReleasedGil released;
  client_.reset();
}

void Connected::Close() {
  if (Ended()) return;
  if (InCallback()) {
    Raise(Status(StatusCode::kFailedPrecondition,
                 "a client cannot be closed in a callback, because it waits for its callbacks; "
                 "close it on another thread"));
  }
  closed_ = true;
  const ReleasedGil released;
  client_->Close();
}

void Connected::CloseSoon(std::vector<std::string> tensors, Milliseconds timeout) {
  if (std::exchange(closed_, true)) return;
  Forget(client_.get());  // else the interpreter's end would close it before the deletions
  static_cast<void>(Detach([client = client_, tensors = std::move(tensors), timeout] {
    for (const std::string& tensor : tensors) {
      const StatusCode code = client->Delete(tensor, timeout).code();
      if (code == StatusCode::kUnavailable || code == StatusCode::kDeadlineExceeded) break;
    }
    client->Close();
  }));
}

const std::shared_ptr<Client>& Connected::client() const {
  if (closed_) {
    Raise(Status(StatusCode::kFailedPrecondition, "this client is closed; " + advice));
  }
  return client_;
}

}  // namespace agmm::python
