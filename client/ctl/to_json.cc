#include "client/ctl/to_json.h"

#include <utility>

#include "absl/time/time.h"
#include "client/ctl/messages.h"
#include "proto/convert/status.h"

namespace agmm {
namespace {

using Json = nlohmann::ordered_json;

Json TimeJson(bool has, const google::protobuf::Timestamp& time) {
  if (!has) return nullptr;
  return absl::FormatTime("%Y-%m-%dT%H:%M:%E6SZ", FromProto(time), absl::UTCTimeZone());
}

// Numbers and texts whose zero says "not known" or "none".
Json Known(double value) { return value == 0 ? Json(nullptr) : Json(value); }
Json Known(const std::string& text) { return text.empty() ? Json(nullptr) : Json(text); }

Json DeviceJson(const v1::DeviceStatus& device) {
  return {{"rank", device.rank()},
          {"kind", device.kind()},
          {"description", device.description()},
          {"threads", device.thread_count()},
          {"heap_bytes", device.heap_bytes()},
          {"heap_free_bytes", device.heap_free_bytes()},
          {"heap_largest_free_bytes", device.heap_largest_free_bytes()},
          {"tensor_bytes", device.tensor_bytes()},
          {"held_bytes", device.held_bytes()},
          {"workspace_bytes", device.workspace_bytes()},
          {"packed_bytes", device.packed_bytes()},
          {"scratch_bytes", device.scratch_bytes()},
          {"pack_count", device.pack_count()},
          {"allocation_count", device.allocation_count()}};
}

Json RankJson(const v1::RankReport& report) {
  Json epochs = Json::array(), steps = Json::array();
  for (double us : report.epoch_us()) epochs.push_back(us);
  for (const v1::StepTime& step : report.steps())
    steps.push_back({{"start_us", step.start_us()}, {"end_us", step.end_us()}});
  return {{"rank", report.rank()},
          {"node", report.node()},
          {"start_unix_us", Known(report.start_unix_us())},
          {"epoch_start_unix_us", Known(report.epoch_start_unix_us())},
          {"epoch_us", std::move(epochs)},
          {"steps", std::move(steps)}};
}

Json EventJson(const v1::JobEvent& event) {
  return {{"number", event.number()},
          {"state", StateName(event.state())},
          {"time", TimeJson(event.has_time(), event.time())},
          {"message", event.message()}};
}

Json ErrorJson(const absl::Status& error) {
  return {{"code", absl::StatusCodeToString(error.code())},
          {"message", std::string(error.message())},
          {"reason", Known(ReasonOf(error))}};
}

Json FiguresJson(const v1::Job& job) {
  if (!job.has_figures()) return nullptr;
  const v1::JobFigures& figures = job.figures();
  Json moved = Json::array();
  for (const v1::PathBytes& path : figures.moved())
    moved.push_back({{"path", path.path()}, {"bytes", path.bytes()}});
  return {{"time_us", Known(figures.time_us())},
          {"gemm_us", Known(figures.gemm_us())},
          {"gather_us", Known(figures.gather_us())},
          {"flop_count", Known(figures.flop_count())},
          {"tflops", Known(figures.tflops())},
          {"overlap", Known(figures.overlap())},
          {"moved", std::move(moved)}};
}

}  // namespace

Json ToJson(const v1::GetStatusResponse& status, const std::string& endpoint) {
  Json nodes = Json::array(), metrics = Json::object();
  for (const v1::NodeStatus& node : status.nodes()) {
    Json devices = Json::array();
    for (const v1::DeviceStatus& device : node.devices()) devices.push_back(DeviceJson(device));
    nodes.push_back({{"node", node.index()},
                     {"name", node.name()},
                     {"address", node.address()},
                     {"state", StateName(node.state())},
                     {"incarnation", node.incarnation()},
                     {"staging_bytes", node.staging_bytes()},
                     {"devices", std::move(devices)}});
  }
  for (const v1::Metric& metric : status.metrics()) metrics[metric.name()] = metric.value();
  return {{"schema", "agmm.status.v1"},
          {"cluster", status.cluster()},
          {"version", status.version()},
          {"generation", status.generation()},
          {"ready", status.ready()},
          {"reason", status.reason()},
          {"insecure", status.insecure()},
          {"config_hash", status.config_hash()},
          {"endpoint", endpoint},
          {"answering_node", status.answering_node()},
          {"sequencer_node", status.sequencer_node()},
          {"nodes", std::move(nodes)},
          {"metrics", std::move(metrics)}};
}

Json ToJson(const v1::Tensor& tensor) {
  const v1::TensorSpec& spec = tensor.spec();
  return {{"schema", "agmm.tensor.v1"},
          {"tensor_id", tensor.tensor_id()},
          {"name", Known(tensor.name())},
          {"rows", spec.rows()},
          {"cols", spec.cols()},
          {"dtype", DTypeName(spec.dtype())},
          {"sharding", spec.sharding()},
          {"mesh", AxesText(spec.mesh())},
          {"ranks", RanksOf(spec.mesh())},
          {"state", StateName(tensor.state())},
          {"offset_bytes", tensor.offset_bytes()},
          {"shard_bytes", tensor.shard_bytes()},
          {"version", tensor.version()},
          {"owner", tensor.owner()},
          {"session_id", Known(tensor.session_id())},
          {"create_time", TimeJson(tensor.has_create_time(), tensor.create_time())}};
}

Json ToJson(const v1::Tensor& tensor, const SavedFile& saved) {
  Json json = ToJson(tensor);
  json["file"] = {{"path", saved.path},
                  {"format", saved.raw ? "raw" : "npy"},
                  {"dtype", std::string(Name(saved.dtype))}};
  return json;
}

Json ToJson(const absl::Status& error) {
  return {{"schema", "agmm.error.v1"}, {"error", ErrorJson(error)}};
}

std::string JsonLine(const Json& json) {
  return json.dump(-1, ' ', false, Json::error_handler_t::replace) + "\n";
}

Json ToJson(const v1::ListTensorsResponse& list, const v1::GetStatusResponse& status) {
  Json tensors = Json::array();
  for (const v1::Tensor& tensor : list.tensors()) tensors.push_back(ToJson(tensor));
  const Memory memory = MemoryOf(status);
  return {{"schema", "agmm.tensor_list.v1"},
          {"tensors", std::move(tensors)},
          {"memory",
           {{"heap_bytes", memory.heap_bytes},
            {"free_bytes", memory.free_bytes},
            {"tensor_bytes", memory.tensor_bytes},
            {"held_bytes", memory.held_bytes},
            {"workspace_bytes", memory.workspace_bytes},
            {"packed_bytes", memory.packed_bytes},
            {"scratch_bytes", memory.scratch_bytes},
            {"staging_bytes", memory.staging_bytes}}}};
}

Json ToJson(const v1::Job& job) {
  Json ranks = Json::array(), events = Json::array(), tensors = Json::array();
  for (uint64_t id : job.tensor_ids()) tensors.push_back(id);
  for (const v1::RankReport& report : job.ranks()) ranks.push_back(RankJson(report));
  for (const v1::JobEvent& event : job.events()) events.push_back(EventJson(event));
  const Json timeout_s =
      job.has_timeout() ? Json(absl::ToDoubleSeconds(FromProto(job.timeout()))) : Json(nullptr);
  return {{"schema", "agmm.job.v1"},
          {"job_id", job.job_id()},
          {"request_id", Known(job.request_id())},
          {"state", StateName(job.state())},
          {"spec", job.spec()},
          {"m", job.m()},
          {"n", job.n()},
          {"k", job.k()},
          {"dtype", DTypeName(job.dtype())},
          {"mesh", AxesText(job.mesh())},
          {"ranks", RanksOf(job.mesh())},
          {"tensor_ids", std::move(tensors)},
          {"algorithm", Known(job.options().algorithm())},
          {"chunks", job.options().chunk_count()},
          {"explanation", job.explanation()},
          {"plan_hash", Known(job.plan_hash())},
          {"engine", Known(job.engine())},
          {"transport", Known(job.transport())},
          {"repeat", job.repeat_count()},
          {"timeout_s", timeout_s},
          {"owner", job.owner()},
          {"session_id", Known(job.session_id())},
          {"generation", job.generation()},
          {"create_time", TimeJson(job.has_create_time(), job.create_time())},
          {"start_time", TimeJson(job.has_start_time(), job.start_time())},
          {"end_time", TimeJson(job.has_end_time(), job.end_time())},
          {"error", job.has_error() ? ErrorJson(FromProto(job.error())) : Json(nullptr)},
          {"figures", FiguresJson(job)},
          {"reports", std::move(ranks)},
          {"events", std::move(events)}};
}

Json ToJson(const v1::ListJobsResponse& list) {
  Json jobs = Json::array();
  for (const v1::Job& job : list.jobs()) jobs.push_back(ToJson(job));
  return {{"schema", "agmm.job_list.v1"}, {"jobs", std::move(jobs)}};
}

Json ToJson(uint64_t job_id, const v1::JobEvent& event) {
  Json json = {{"schema", "agmm.job_event.v1"}, {"job_id", job_id}};
  json.update(EventJson(event));
  return json;
}

}  // namespace agmm
