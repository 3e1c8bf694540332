#include "extension/fields.h"

#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <chrono>

#include "extension/raise.h"

namespace nb = nanobind;

namespace agmm::python {
namespace {

template <typename T>
nb::object TupleOf(const std::vector<T>& values) {
  return nb::tuple(nb::cast(values));
}

// Seconds since 1970.
double ToSeconds(WallTime time) {
  return std::chrono::duration<double>(time.time_since_epoch()).count();
}

nb::object ToSeconds(const std::optional<WallTime>& time) {
  return time.has_value() ? nb::cast(ToSeconds(*time)) : nb::none();
}

// The name of an .npy file need not be UTF-8. It becomes what os.fsdecode makes of it.
nb::object NameInFile(const std::string& name) {
  nb::object text = nb::steal(
      PyUnicode_DecodeUTF8(name.data(), static_cast<Py_ssize_t>(name.size()), "surrogateescape"));
  if (!text.is_valid()) throw nb::python_error();
  return text;
}

nb::tuple FieldsOf(const JobFigures& figures) {
  nb::list moved;
  for (const JobFigures::Moved& bytes : figures.moved)
    moved.append(nb::make_tuple(bytes.path, bytes.bytes));
  return nb::make_tuple(figures.time_us, figures.gemm_us, figures.gather_us, figures.flop_count,
                        figures.tflops, figures.overlap, moved, figures.baseline_job,
                        figures.baseline_stale);
}

}  // namespace

nb::tuple FieldsOf(const TensorInfo& info) {
  return nb::make_tuple(info.id, info.name, info.spec.rows, info.spec.cols,
                        static_cast<int>(info.spec.type), info.spec.sharding, info.spec.mesh,
                        TupleOf(info.spec.ranks), info.has_contents, info.shard_bytes, info.version,
                        info.owner, info.of_session, info.handle);
}

nb::tuple FieldsOf(const JobInfo& info) {
  const nb::object error = info.error.ok() ? nb::none() : ExceptionOf(info.error);
  return nb::make_tuple(info.id, static_cast<int>(info.state), error, info.m, info.n, info.k,
                        static_cast<int>(info.type), static_cast<int>(info.result_type), info.split,
                        info.algorithm, info.explanation, info.schedule, info.chunk_count,
                        info.k_chunk_count, info.workspace_shard_count, info.repeat_count,
                        info.carried, info.spec, info.plan_hash, info.engine, info.transport,
                        info.owner, TupleOf(info.device_paths), TupleOf(info.device_products),
                        ToSeconds(info.create_time), ToSeconds(info.start_time),
                        ToSeconds(info.end_time), FieldsOf(info.figures));
}

nb::tuple FieldsOf(const JobEvent& event) {
  return nb::make_tuple(event.number, static_cast<int>(event.state), ToSeconds(event.time),
                        event.message);
}

nb::tuple FieldsOf(const WorldInfo& info) {
  nb::list devices;
  for (const WorldDevice& device : info.devices) {
    devices.append(nb::make_tuple(device.rank, device.node, device.kind, device.heap_bytes,
                                  device.free_bytes, device.largest_free_bytes));
  }
  return nb::make_tuple(info.cluster, info.reason, info.version, info.generation, info.ready,
                        devices);
}

nb::tuple FieldsOf(const SessionInfo& info) {
  return nb::make_tuple(info.number, info.own, info.owner, info.program, info.node,
                        ToSeconds(info.open_time), info.tensor_count, info.tensor_bytes,
                        info.job_count);
}

nb::tuple FieldsOf(const LoadedFile& file) {
  nb::list loaded;
  for (const LoadedFile::Loaded& each : file.loaded) {
    loaded.append(nb::make_tuple(NameInFile(each.name_in_file), FieldsOf(each.tensor), each.bytes,
                                 each.seconds));
  }
  return nb::make_tuple(loaded, TupleOf(file.skipped), TupleOf(file.unused_patterns));
}

}  // namespace agmm::python
