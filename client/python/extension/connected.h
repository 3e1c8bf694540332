// A client as Python holds it.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "agmm/agmm.h"

namespace agmm::python {

// Its functions require the GIL.
class Connected {
 public:
  explicit Connected(std::unique_ptr<Client> client);
  // Closes the client; in a callback, on another thread. The interpreter's end has closed it.
  ~Connected();
  Connected(const Connected&) = delete;

  // Ends the calls in progress. Raises FAILED_PRECONDITION in a callback.
  void Close();
  // Closes the client on another thread, which deletes these tensors before, unless the daemon
  // takes more than `timeout` for one. The interpreter's end waits for it. Has no effect once
  // closed.
  void CloseSoon(std::vector<std::string> tensors, Milliseconds timeout);
  bool closed() const { return closed_; }
  // Raises FAILED_PRECONDITION once closed, with `advice`.
  const std::shared_ptr<Client>& client() const;
  // Also of a closed client.
  const std::string& endpoint() const { return client_->endpoint(); }

  // Follows "this client is closed".
  std::string advice = "open another one with agmm.connect";

 private:
  std::shared_ptr<Client> client_;
  bool closed_ = false;
};

}  // namespace agmm::python
