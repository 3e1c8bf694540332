// TCP ports of loopback that no other program gets during this object's lifetime, even while a
// daemon that uses one restarts. A socket keeps each port bound, without listening; SO_REUSEADDR
// lets daemons listen on it, and the kernel never assigns it to a program that binds port 0.
#pragma once

#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cstddef>
#include <vector>

#include "gtest/gtest.h"

namespace agmm {

class HeldPorts {
 public:
  explicit HeldPorts(int count) {
    for (int i = 0; i < count; ++i) {
      const int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
      const int one = 1;
      EXPECT_EQ(setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &one, sizeof(one)), 0);
      sockaddr_in address{};
      address.sin_family = AF_INET;
      address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
      socklen_t size = sizeof(address);
      EXPECT_EQ(bind(fd, reinterpret_cast<sockaddr*>(&address), size), 0);
      EXPECT_EQ(getsockname(fd, reinterpret_cast<sockaddr*>(&address), &size), 0);
      sockets_.push_back(fd);
      ports_.push_back(ntohs(address.sin_port));
    }
  }
  ~HeldPorts() {
    for (int fd : sockets_) close(fd);
  }
  HeldPorts(const HeldPorts&) = delete;

  int operator[](size_t i) const { return ports_[i]; }
  size_t size() const { return ports_.size(); }

 private:
  std::vector<int> sockets_, ports_;
};

}  // namespace agmm
