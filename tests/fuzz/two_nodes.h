// A world of two nodes, and the messages of its members when they join.
#pragma once

#include <string>

#include "agmm/v1/peer.pb.h"
#include "daemon/config/config.h"
#include "daemon/link/protocol.h"

namespace agmm::fuzz {

inline const Config& TwoNodes() {
  static const Config* const config = [] {
    auto* made = new Config;
    made->cluster = "demo";
    made->hash = "0123456789abcdef";
    made->nodes = {{"a", "127.0.0.1:7101", 2}, {"b", "127.0.0.1:7102", 1}};
    return made;
  }();
  return *config;
}

inline v1::MemberMessage HelloOf(int node, char incarnation = 'x') {
  v1::MemberMessage message;
  v1::Hello* hello = message.mutable_hello();
  hello->set_cluster("demo");
  hello->set_config_hash(TwoNodes().hash);
  hello->set_node(node);
  hello->set_node_name(TwoNodes().nodes[node].name);
  hello->set_incarnation(std::string(16, incarnation));
  hello->set_protocol_version(kProtocolVersion);
  hello->set_plan_format_version(kPlanFormatVersion);
  hello->set_message_version(kMessageVersion);
  for (int i = 0; i < TwoNodes().nodes[node].devices; ++i)
    hello->add_devices()->set_heap_bytes(1 << 20);
  return message;
}

// One message in the input of member_message_fuzz.
inline std::string Framed(uint8_t stream, const v1::MemberMessage& message) {
  const std::string bytes = message.SerializeAsString();
  std::string framed;
  framed += static_cast<char>(stream);
  framed += static_cast<char>(bytes.size() & 0xff);
  framed += static_cast<char>(bytes.size() >> 8);
  return framed + bytes;
}

}  // namespace agmm::fuzz
