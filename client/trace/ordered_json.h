// JSON documents whose fields keep their order.
#pragma once

#include <nlohmann/json.hpp>

namespace agmm {

using Json = nlohmann::ordered_json;

}  // namespace agmm
