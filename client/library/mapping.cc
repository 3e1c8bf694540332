#include <utility>

#include "absl/strings/str_format.h"
#include "client/connect/tensor_handle.h"
#include "client/connect/tensor_mapping.h"
#include "client/library/client_state.h"
#include "kernels/base/deadline.h"

namespace agmm {

struct MappingState {
  // A forked child does not have the memory, and the stream belongs to the parent.
  ~MappingState() {
    if (Forked()) static_cast<void>(mapping.release());
  }

  // Calls a method of the mapping, with the client's timeout for it.
  Result<TensorInfo> Call(absl::StatusOr<v1::Tensor> (TensorMapping::*method)(Deadline),
                          absl::Duration (ClientState::*timeout_of)(Milliseconds) const,
                          Milliseconds timeout) const {
    const ClientState::Use use = client->Begin();
    if (use == nullptr) {
      return Refusal(Status(
          StatusCode::kFailedPrecondition,
          absl::StrFormat(
              "the client of the mapping of \"%s\" was closed; map it through an open client",
              tensor.name)));
    }
    return ToPublic((mapping.get()->*method)(Deadline::After(((*use).*timeout_of)(timeout))));
  }

  std::shared_ptr<ClientState> client;
  std::unique_ptr<TensorMapping> mapping;
  TensorInfo tensor;
  std::vector<Mapping::Shard> shards;
};

Result<Mapping> Client::Map(const std::string& name, bool writable, Milliseconds timeout,
                            std::stop_token stop) {
  const ClientState::Use client = state_->Begin();
  if (client == nullptr) return Refusal();
  const auto named = ParseTensor(name);
  if (!named.ok()) return ToPublic(named.status());
  v1::BeginMapping begin;
  *begin.mutable_tensor() = named->ref;
  begin.set_writable(writable);
  begin.set_session_id(client->session());
  auto mapping = TensorMapping::Open(client->connection(), begin,
                                     Deadline::After(client->TransferTimeout(timeout)),
                                     named->sequencer, stop, client);
  if (!mapping.ok()) return ToPublic(mapping.status());
  auto state = std::make_unique<MappingState>();
  state->client = state_;
  state->mapping = *std::move(mapping);
  state->tensor = ToPublic(state->mapping->tensor());
  for (const TensorMapping::Shard& shard : state->mapping->shards()) {
    state->shards.push_back({shard.rank, shard.row_begin, shard.row_end, shard.col_begin,
                             shard.col_end, shard.pitch_bytes, shard.data});
  }
  return Mapping(std::move(state));
}

namespace {

Status NoTensor() {
  return Status(StatusCode::kFailedPrecondition,
                "this Mapping stands for no tensor; take one from Client::Map");
}

}  // namespace

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
  if (state_ == nullptr || Forked()) return {};
  return state_->shards;
}

bool Mapping::detached() const { return !status().ok(); }

Status Mapping::status() const {
  if (state_ == nullptr) return NoTensor();
  return Forked() ? ForkedError() : ToPublic(state_->mapping->status());
}

void Mapping::Detach() {
  if (state_ != nullptr && !Forked()) state_->mapping->End();
}

void Mapping::GiveBack(Milliseconds timeout) {
  if (state_ == nullptr || Forked()) return;
  const ClientState::Use client = state_->client->Begin();
  if (client == nullptr) return Detach();
  state_->mapping->GiveBack(Deadline::After(client->CallTimeout(timeout)));
}

Result<TensorInfo> Mapping::Commit(Milliseconds timeout) {
  if (state_ == nullptr) return NoTensor();
  return state_->Call(&TensorMapping::Commit, &ClientState::CallTimeout, timeout);
}

Result<TensorInfo> Mapping::Release(Milliseconds timeout) {
  if (state_ == nullptr) return NoTensor();
  return state_->Call(&TensorMapping::Release, &ClientState::CallTimeout, timeout);
}

Result<TensorInfo> Mapping::Renew(Milliseconds timeout) {
  if (state_ == nullptr) return NoTensor();
  Result<TensorInfo> tensor =
      state_->Call(&TensorMapping::Renew, &ClientState::TransferTimeout, timeout);
  if (tensor.ok()) state_->tensor = *tensor;
  return tensor;
}

}  // namespace agmm
