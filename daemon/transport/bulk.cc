#include "daemon/transport/bulk.h"

#include <algorithm>
#include <utility>
#include <vector>

#include "absl/strings/str_format.h"

namespace agmm::transport {
namespace {

constexpr size_t kMaxErrorText = 512;

wire::BulkHeader Describe(wire::Kind kind, const World& world, const BulkBlock& block,
                          int64_t bytes) {
  wire::BulkHeader header;
  header.envelope = {wire::kVersion, kind, world.self_node, world.generation};
  header.tensor = block.tensor;
  header.rank = block.rank;
  header.row_begin = block.row_begin;
  header.row_end = block.row_end;
  header.col_begin = block.col_begin;
  header.col_end = block.col_end;
  header.bytes = bytes;
  return header;
}

BulkBlock BlockOf(const wire::BulkHeader& header) {
  return {header.tensor,  header.rank,      header.row_begin,
          header.row_end, header.col_begin, header.col_end};
}

absl::Status CheckSize(const BulkBlock& block, int64_t bytes, const Rows& rows) {
  if (rows.bytes() == bytes) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrFormat("rows [%d, %d) x columns [%d, %d) of tensor %d are %d bytes on their node, "
                      "the request says %d; both "
                      "must have the same description of the tensor",
                      block.row_begin, block.row_end, block.col_begin, block.col_end, block.tensor,
                      rows.bytes(), bytes));
}

}  // namespace

Bulk::Bulk(UcxWorker* worker, const CurrentWorld& worlds, Endpoints* endpoints, Receives* receives,
           BulkStore* store, Stats* stats)
    : worker_(worker),
      worlds_(worlds),
      endpoints_(endpoints),
      receives_(receives),
      store_(store),
      stats_(stats) {}

void Bulk::Write(int node, const BulkBlock& block, int64_t bytes, Outgoing data, Done done) {
  const std::shared_ptr<const World> world = worlds_.Get();
  Request request;
  request.node = node;
  request.generation = world->generation;
  request.answer = wire::kWritten;
  request.done = std::move(done);
  auto outbound = std::make_unique<Outbound>();
  outbound->data = std::move(data);
  Start(Describe(wire::kWrite, *world, block, bytes), std::move(request), world,
        std::move(outbound));
}

void Bulk::Read(int node, const BulkBlock& block, const Rows& to, Done done) {
  const std::shared_ptr<const World> world = worlds_.Get();
  Request request;
  request.node = node;
  request.generation = world->generation;
  request.answer = wire::kReadBack;
  request.to = to;
  request.done = std::move(done);
  Start(Describe(wire::kRead, *world, block, to.bytes()), std::move(request), world,
        std::make_unique<Outbound>());
}

void Bulk::Start(const wire::BulkHeader& described, Request request,
                 std::shared_ptr<const World> world, std::unique_ptr<Outbound> outbound) {
  worker_->Post([this, header = described, request = std::move(request), world,
                 outbound = std::move(outbound)]() mutable {
    header.request = ++last_id_;
    if (!world->key->Seal(&header)) {
      request.done(absl::InternalError("OpenSSL failed to sum a header"));
      return;
    }
    outbound->kind = static_cast<wire::Kind>(header.envelope.kind);
    outbound->SetHeader(header);
    outbound->done = Done([this, id = header.request](absl::Status status) { OnSent(id, status); });
    (outbound->kind == wire::kWrite ? stats_->bulk_write : stats_->bulk_read)
        .Sent(outbound->data.length);
    const int node = request.node;
    requests_.emplace(header.request, std::move(request));
    endpoints_->Send(node, std::move(outbound));
    if (worlds_.generation() != header.envelope.generation) FailStale();
  });
}

void Bulk::OnSent(uint64_t id, absl::Status status) {
  auto it = requests_.find(id);
  if (it == requests_.end()) return;  // a read that has been answered already
  it->second.sending = false;
  if (!status.ok()) {
    it->second.waiting = false;
    it->second.status.Update(status);
  }
  FinishIfDone(id);
}

void Bulk::Answer(uint64_t id, absl::Status status) {
  auto it = requests_.find(id);
  if (it == requests_.end() || !it->second.waiting) return;
  it->second.waiting = false;
  it->second.status.Update(status);
  FinishIfDone(id);
}

void Bulk::FinishIfDone(uint64_t id) {
  auto it = requests_.find(id);
  if (it->second.sending || it->second.waiting) return;
  Request request = std::move(it->second);
  requests_.erase(it);
  request.done(request.status);
}

void Bulk::FailNode(int node, uint64_t generation, absl::Status why) {
  std::vector<uint64_t> ids;
  for (const auto& [id, request] : requests_) {
    if (request.node == node && request.generation <= generation) ids.push_back(id);
  }
  for (uint64_t id : ids) Answer(id, why);
}

void Bulk::FailStale() {
  const uint64_t current = worlds_.generation();
  std::vector<uint64_t> ids;
  for (const auto& [id, request] : requests_) {
    if (request.generation != current) ids.push_back(id);
  }
  for (uint64_t id : ids) {
    Answer(
        id,
        absl::AbortedError(absl::StrFormat(
            "the world has formed anew (generation %d) while bytes of a tensor were under way; ask "
            "again",
            current)));
  }
}

void Bulk::FailAll(absl::Status why) {
  std::vector<uint64_t> ids;
  for (const auto& [id, request] : requests_) ids.push_back(id);
  for (uint64_t id : ids) Answer(id, why);
}

ucs_status_t Bulk::OnMessage(wire::Kind kind, const void* bytes, size_t length,
                             const Payload& payload) {
  wire::BulkHeader header;
  if (!Admit(worlds_, kind, bytes, length, &header, stats_)) return UCS_OK;
  if (header.rank < 0 || header.row_begin < 0 || header.row_begin > header.row_end ||
      header.col_begin < 0 || header.col_begin > header.col_end) {
    stats_->malformed.Add();
    return UCS_OK;
  }
  switch (kind) {
    case wire::kWrite: return OnWrite(header, payload);
    case wire::kRead: OnRead(header); return UCS_OK;
    case wire::kWritten:
    case wire::kReadBack: return OnAnswer(kind, header, payload);
    case wire::kPlan: break;
  }
  return UCS_OK;
}

ucs_status_t Bulk::OnWrite(const wire::BulkHeader& header, const Payload& payload) {
  const int node = header.envelope.source_node;
  const BulkBlock block = BlockOf(header);
  absl::StatusOr<Rows> rows = store_->Resolve(node, block, /*write=*/true);
  absl::Status status = rows.ok() ? CheckSize(block, header.bytes, *rows) : rows.status();
  if (!status.ok()) {
    Reply(header, status, {});
    return UCS_OK;
  }
  const bool used = receives_->Take(node, header.envelope.generation, payload, *rows,
                                    Done([this, header](absl::Status status) {
                                      if (status.ok()) stats_->bulk_write.Received(header.bytes);
                                      Reply(header, status, {});
                                    }));
  return used ? UCS_INPROGRESS : UCS_OK;
}

void Bulk::OnRead(const wire::BulkHeader& header) {
  const BulkBlock block = BlockOf(header);
  absl::StatusOr<Rows> rows = store_->Resolve(header.envelope.source_node, block, /*write=*/false);
  absl::Status status = rows.ok() ? CheckRows(*rows) : rows.status();
  if (status.ok()) status = CheckSize(block, header.bytes, *rows);
  absl::StatusOr<Outgoing> data = status.ok() ? Gather(*rows, stats_) : status;
  stats_->bulk_read.Received(0);
  Reply(header, data.status(), data.ok() ? *std::move(data) : Outgoing{});
}

void Bulk::Reply(const wire::BulkHeader& request, const absl::Status& status, Outgoing data) {
  const int node = request.envelope.source_node;
  auto outbound = std::make_unique<Outbound>();
  outbound->kind = request.envelope.kind == wire::kWrite ? wire::kWritten : wire::kReadBack;
  outbound->data = std::move(data);
  if (!status.ok()) {
    outbound->text = std::string(status.message().substr(0, kMaxErrorText));
    outbound->data.data = reinterpret_cast<const std::byte*>(outbound->text.data());
    outbound->data.length = outbound->text.size();
  }
  wire::BulkHeader header = request;
  header.code = static_cast<int32_t>(status.code());
  // Posted, so that it follows a Connect that was asked for before the request came.
  worker_->Post([this, node, header, outbound = std::move(outbound)]() mutable {
    const std::shared_ptr<const World> world = worlds_.Get();
    // A request of an older world has been failed at its sender.
    if (world == nullptr || world->generation != header.envelope.generation) return;
    header.envelope.kind = outbound->kind;
    header.envelope.source_node = world->self_node;
    if (!world->key->Seal(&header)) return;
    outbound->SetHeader(header);
    stats_->bulk_reply.Sent(outbound->data.length);
    // Where the answer cannot be sent the asker is lost, which its endpoint reports.
    endpoints_->Send(node, std::move(outbound));
  });
}

ucs_status_t Bulk::OnAnswer(wire::Kind kind, const wire::BulkHeader& header,
                            const Payload& payload) {
  auto it = requests_.find(header.request);
  if (it == requests_.end() || it->second.node != header.envelope.source_node ||
      it->second.answer != kind || !it->second.waiting) {
    stats_->unknown.Add();
    return UCS_OK;
  }
  if (header.code != 0) {
    const bool known =
        header.code > 0 && header.code <= static_cast<int>(absl::StatusCode::kUnauthenticated);
    const size_t length = payload.rendezvous ? 0 : std::min<size_t>(payload.length, kMaxErrorText);
    const absl::string_view text(static_cast<const char*>(payload.data), length);
    Answer(header.request,
           absl::Status(
               known ? static_cast<absl::StatusCode>(header.code) : absl::StatusCode::kUnknown,
               absl::StrFormat("node %d: %s", header.envelope.source_node, text)));
    return UCS_OK;
  }
  if (kind == wire::kWritten) {
    stats_->bulk_reply.Received(0);
    Answer(header.request, absl::OkStatus());
    return UCS_OK;
  }
  const Rows to = it->second.to;
  if (absl::Status status = CheckSize(BlockOf(header), header.bytes, to); !status.ok()) {
    stats_->wrong_length.Add();
    Answer(header.request, status);
    return UCS_OK;
  }
  // From here on the receive has `to`: a request that is failed meanwhile must not end before it.
  Done done = std::move(it->second.done);
  requests_.erase(it);
  const int64_t bytes = header.bytes;
  const bool used = receives_->Take(
      header.envelope.source_node, header.envelope.generation, payload, to,
      Done([this, bytes, done = std::make_shared<Done>(std::move(done))](absl::Status status) {
        if (status.ok()) stats_->bulk_reply.Received(bytes);
        (*done)(std::move(status));
      }));
  return used ? UCS_INPROGRESS : UCS_OK;
}

}  // namespace agmm::transport
