#include "client/library/mapping.h"

#include <utility>

#include "absl/strings/str_format.h"
#include "absl/time/clock.h"
#include "client/library/client.h"
#include "client/library/to_public.h"

namespace agmm {

Result<Mapping> Client::Map(const std::string& name, bool writable, Milliseconds timeout) {
  auto state = std::make_unique<MappingState>();
  const std::shared_ptr<Core> core = state->core = impl_->core;
  if (!core->Begin()) {
    return Status(StatusCode::kFailedPrecondition,
                  absl::StrFormat("\"%s\" cannot be mapped: its client is being destroyed", name));
  }
  v1::BeginMapping begin;
  begin.mutable_tensor()->set_name(name);
  begin.set_writable(writable);
  begin.set_session_id(core->session());
  auto mapping =
      TensorMapping::Open(core->connection(), begin, absl::Now() + core->TransferTimeout(timeout),
                          [core] { core->End(); });
  if (!mapping.ok()) return ToPublic(mapping.status());
  state->mapping = *std::move(mapping);
  state->tensor = ToPublic(state->mapping->tensor());
  for (const TensorMapping::Shard& shard : state->mapping->shards()) {
    state->shards.push_back({shard.rank, shard.row_begin, shard.row_end, shard.col_begin,
                             shard.col_end, shard.pitch_bytes, shard.data});
  }
  return Mapping(std::move(state));
}

Mapping::Mapping() = default;
Mapping::Mapping(std::unique_ptr<MappingState> state) : state_(std::move(state)) {}
Mapping::Mapping(Mapping&&) noexcept = default;
Mapping& Mapping::operator=(Mapping&&) noexcept = default;
Mapping::~Mapping() = default;

const TensorInfo& Mapping::tensor() const {
  static const TensorInfo* const kNone = new TensorInfo;
  return state_ == nullptr ? *kNone : state_->tensor;
}

std::span<const Mapping::Shard> Mapping::shards() const {
  if (state_ == nullptr) return {};
  return state_->shards;
}

bool Mapping::detached() const { return state_ == nullptr || !state_->mapping->status().ok(); }

Result<TensorInfo> Mapping::Commit(Milliseconds timeout) {
  if (state_ == nullptr) {
    return Status(StatusCode::kFailedPrecondition,
                  "this Mapping stands for no tensor; take one from Client::Map");
  }
  const CoreUse use(state_->core.get());
  if (!use.ok()) {
    return Status(
        StatusCode::kFailedPrecondition,
        absl::StrFormat("the client of the mapping of \"%s\" is gone; commit before it goes",
                        state_->tensor.name));
  }
  const absl::StatusOr<v1::Tensor> tensor =
      state_->mapping->Commit(absl::Now() + state_->core->CallTimeout(timeout));
  if (!tensor.ok()) return ToPublic(tensor.status());
  return ToPublic(*tensor);
}

}  // namespace agmm
