#include "daemon/transport/bulk.h"

#include <algorithm>
#include <utility>
#include <vector>

#include "absl/strings/str_format.h"
#include "kernels/base/status.h"

namespace agmm::transport {
namespace {

constexpr size_t kMaxErrorText = 512;

wire::BulkHeader HeaderOf(const BulkBlock& block, int64_t bytes) {
  wire::BulkHeader header;
  header.tensor = block.tensor;
  header.rank = block.rank;
  header.row_begin = block.row_begin;
  header.row_end = block.row_end;
  header.col_begin = block.col_begin;
  header.col_end = block.col_end;
  header.bytes = bytes;
  return header;
}

wire::Kind AnswerTo(uint16_t kind) {
  if (kind == wire::kPing) return wire::kPong;
  return kind == wire::kWrite ? wire::kWritten : wire::kReadBack;
}

BulkBlock BlockOf(const wire::BulkHeader& header) {
  return {header.tensor,  header.rank,      header.row_begin,
          header.row_end, header.col_begin, header.col_end};
}

absl::Status CheckSize(const BulkBlock& block, int64_t bytes, const Rows& rows) {
  if (rows.bytes() == bytes) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrFormat("rows [%d, %d) x columns [%d, %d) of tensor %d are %d bytes on their node, "
                      "but %d in the request; both nodes must have the same description of it",
                      block.row_begin, block.row_end, block.col_begin, block.col_end, block.tensor,
                      rows.bytes(), bytes));
}

}  // namespace

void Bulk::Start(wire::Kind kind, int node, const BulkBlock& block, int64_t bytes, Outgoing data,
                 const Rows& to, Done done) {
  auto outbound = std::make_unique<Outbound>(kind, shared_.current.Get());
  outbound->data = std::move(data);
  Request request;
  request.node = node;
  request.generation = outbound->generation->number;
  request.answer = AnswerTo(kind);
  request.to = to;
  request.done = std::move(done);
  shared_.worker->Post([this, node, header = HeaderOf(block, bytes), request = std::move(request),
                        outbound = std::move(outbound)]() mutable {
    header.request = ++last_id_;
    outbound->done = Done([this, id = header.request](absl::Status status) { OnSent(id, status); });
    shared_.counters.bulk.Sent(outbound->data.length);
    const uint64_t generation = request.generation;
    requests_.emplace(header.request, std::move(request));
    endpoints_->Send(node, header, std::move(outbound));
    if (shared_.current.number() != generation) FailStale();
  });
}

void Bulk::OnSent(uint64_t id, absl::Status status) {
  auto it = requests_.find(id);
  if (it == requests_.end()) return;  // an answered read
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

void Bulk::FailStale() {
  const uint64_t current = shared_.current.number();
  Fail({kAllNodes, current - 1},
       absl::AbortedError(absl::StrFormat(
           "generation %d of the world began while bytes of a tensor were under way; retry",
           current)));
}

void Bulk::Fail(const Scope& scope, const absl::Status& why) {
  std::vector<uint64_t> ids;
  for (const auto& [id, request] : requests_) {
    if (scope.Contains(request.node, request.generation)) ids.push_back(id);
  }
  for (uint64_t id : ids) Answer(id, why);
}

ucs_status_t Bulk::OnMessage(wire::Kind kind, const void* bytes, size_t length,
                             const Payload& payload) {
  wire::BulkHeader header;
  if (!Admit(shared_.current, kind, bytes, length, &header, &shared_.counters)) return UCS_OK;
  if (header.rank < 0 || header.row_begin < 0 || header.row_begin > header.row_end ||
      header.col_begin < 0 || header.col_begin > header.col_end) {
    shared_.counters.malformed.Add();
    return UCS_OK;
  }
  switch (kind) {
    case wire::kWrite: return OnWrite(header, payload);
    case wire::kRead: OnRead(header); return UCS_OK;
    case wire::kPing: Reply(header, absl::OkStatus(), {}); return UCS_OK;
    default: return OnAnswer(kind, header, payload);
  }
}

absl::StatusOr<Rows> Bulk::Locate(const wire::BulkHeader& header, bool write) const {
  const BulkBlock block = BlockOf(header);
  AGMM_ASSIGN_OR_RETURN(const Rows rows,
                        store_->Resolve(header.envelope.source_node, block, write));
  AGMM_RETURN_IF_ERROR(CheckRows(rows));
  AGMM_RETURN_IF_ERROR(CheckSize(block, header.bytes, rows));
  return rows;
}

ucs_status_t Bulk::OnWrite(const wire::BulkHeader& header, const Payload& payload) {
  const absl::StatusOr<Rows> rows = Locate(header, /*write=*/true);
  if (!rows.ok()) {
    Reply(header, rows.status(), {});
    return UCS_OK;
  }
  const bool used = receives_->Take(header.envelope.source_node, payload, *rows,
                                    Done([this, header](absl::Status status) {
                                      if (status.ok()) shared_.counters.bulk.Received(header.bytes);
                                      Reply(header, status, {});
                                    }));
  return used ? UCS_INPROGRESS : UCS_OK;
}

void Bulk::OnRead(const wire::BulkHeader& header) {
  const absl::StatusOr<Rows> rows = Locate(header, /*write=*/false);
  absl::StatusOr<Outgoing> data = rows.ok() ? Gather(*rows, &shared_.counters) : rows.status();
  Reply(header, data.status(), data.ok() ? *std::move(data) : Outgoing{});
}

void Bulk::Reply(const wire::BulkHeader& request, const absl::Status& status, Outgoing data) {
  wire::BulkHeader header = request;
  header.code = static_cast<int32_t>(status.code());
  // Posted, so that it runs after a Connect that was called before the request arrived.
  shared_.worker->Post([this, header, data = std::move(data),
                        text = std::string(status.message().substr(0, kMaxErrorText))]() mutable {
    // A request of an older generation has failed at its sender.
    std::shared_ptr<const Generation> generation = shared_.current.Get();
    if (generation == nullptr || generation->number != header.envelope.generation) return;
    auto outbound =
        std::make_unique<Outbound>(AnswerTo(header.envelope.kind), std::move(generation));
    outbound->data = std::move(data);
    outbound->text = std::move(text);
    if (header.code != 0) {
      outbound->data.data = reinterpret_cast<const std::byte*>(outbound->text.data());
      outbound->data.length = outbound->text.size();
    }
    shared_.counters.bulk.Sent(outbound->data.length);
    // If the answer cannot be sent, the peer is lost, and its endpoint reports that.
    endpoints_->Send(header.envelope.source_node, header, std::move(outbound));
  });
}

ucs_status_t Bulk::OnAnswer(wire::Kind kind, const wire::BulkHeader& header,
                            const Payload& payload) {
  auto it = requests_.find(header.request);
  if (it == requests_.end() || it->second.node != header.envelope.source_node ||
      it->second.answer != kind || !it->second.waiting) {
    shared_.counters.unknown.Add();
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
               absl::StrFormat("%s: %s", shared_.describe(header.envelope.source_node), text)));
    return UCS_OK;
  }
  if (kind != wire::kReadBack) {
    Answer(header.request, absl::OkStatus());
    return UCS_OK;
  }
  const Rows to = it->second.to;
  if (absl::Status status = CheckSize(BlockOf(header), header.bytes, to); !status.ok()) {
    shared_.counters.wrong_length.Add();
    Answer(header.request, status);
    return UCS_OK;
  }
  // The receive writes to `to` from here on, so the request must not fail before it ends.
  Done done = std::move(it->second.done);
  requests_.erase(it);
  const int64_t bytes = header.bytes;
  const bool used = receives_->Take(
      header.envelope.source_node, payload, to,
      Done([this, bytes, done = std::make_shared<Done>(std::move(done))](absl::Status status) {
        if (status.ok()) shared_.counters.bulk.Received(bytes);
        (*done)(std::move(status));
      }));
  return used ? UCS_INPROGRESS : UCS_OK;
}

}  // namespace agmm::transport
