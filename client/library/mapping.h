// What is behind a Mapping.
#pragma once

#include <memory>
#include <vector>

#include "client/agmm.h"
#include "client/library/core.h"
#include "client/mapping.h"

namespace agmm {

struct MappingState {
  std::shared_ptr<Core> core;
  // A use of the core until it has ended.
  std::unique_ptr<TensorMapping> mapping;
  TensorInfo tensor;
  std::vector<Mapping::Shard> shards;
};

}  // namespace agmm
