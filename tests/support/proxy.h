// A proxy between a client and a daemon that breaks their connection on request.
#pragma once

#include <atomic>
#include <cstdint>
#include <mutex>
#include <set>
#include <string>
#include <thread>

namespace agmm {

class Proxy {
 public:
  // Listens on a port of loopback and forwards to `port`.
  explicit Proxy(int port);
  ~Proxy();
  Proxy(const Proxy&) = delete;

  // "127.0.0.1:port".
  std::string endpoint() const;

  // From now on no bytes from the daemon reach a client.
  void HoldAnswers() { hold_ = true; }
  // Closes all connections; later ones work.
  void Cut();
  // Closes the connection that forwards the last of the next `bytes` in this direction. Later
  // connections work. A message that is cut in two never arrives, even if the rest is in a buffer.
  void CutAfterToDaemon(int64_t bytes) { until_cut_[kToDaemon] = bytes; }
  // Returns true once the connection has been cut after the requested bytes.
  bool HasCut() const { return until_cut_[kToDaemon] == 0 && until_cut_[kToClient] == 0; }
  void CutAfterToClient(int64_t bytes) { until_cut_[kToClient] = bytes; }
  // Closes all connections, and every later one at once, until Restore.
  void Break();
  // Like CutAfterToClient, and then Break.
  void BreakAfterToClient(int64_t bytes);
  void Restore() { broken_ = false; }
  // Closes the next connection only.
  void RefuseOne() { refuse_one_ = true; }
  int refused() const { return refused_; }
  // Closes all connections and refuses new ones.
  void Stop();

 private:
  enum Direction { kToDaemon, kToClient };

  void Accept();
  void Pump(int client, int daemon);
  // Returns true if the connection continues.
  bool PassOn(Direction direction, int from, int to);

  const int to_port_;
  int listener_ = -1, port_ = 0;
  std::atomic<bool> hold_ = false, broken_ = false, refuse_one_ = false, stopping_ = false,
                    break_at_cut_ = false;
  std::atomic<int> cuts_ = 0, refused_ = 0;
  std::atomic<int64_t> until_cut_[2] = {0, 0};  // bytes; 0: no cut is planned
  std::mutex mutex_;
  std::set<std::thread*> pumps_;
  std::thread acceptor_;
};

}  // namespace agmm
