#include "extension/files.h"

#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <new>
#include <optional>
#include <utility>

#include "extension/bindings.h"
#include "extension/transfer.h"

namespace nb = nanobind;

namespace agmm::python {
namespace {

std::string TextOf(const nb::bytes& path) { return std::string(path.c_str(), path.size()); }

}  // namespace

nb::tuple Load(const Connected& self, nb::bytes path, std::vector<LoadRule> rules, bool strict,
               nb::object progress, int64_t timeout_ms, std::stop_source stop) {
  Transfer transfer(nb::none(), std::move(progress), std::move(stop));
  return transfer.Run(
      timeout_ms, [&, client = self.client(), file = TextOf(path)](const TransferOptions& options) {
        return client->Load(file, rules, {.strict = strict, .transfer = options});
      });
}

nb::list Save(const Connected& self, nb::bytes path, std::vector<std::string> names,
              std::map<std::string, std::string> metadata, nb::object progress, int64_t timeout_ms,
              std::stop_source stop) {
  Transfer transfer(nb::none(), std::move(progress), std::move(stop));
  return transfer.Run(
      timeout_ms, [&, client = self.client(), file = TextOf(path)](const TransferOptions& options) {
        return client->Save(file, names, {.metadata = metadata, .transfer = options});
      });
}

void BindFiles(nb::module_& module) {
  nb::class_<LoadRule>(module, "LoadRule")
      .def(
          "__init__",
          [](LoadRule* self, std::string pattern, std::string sharding, std::string mesh,
             std::vector<int> ranks, std::optional<int> type, std::string name, bool transpose,
             bool skip) {
            new (self) LoadRule{.pattern = std::move(pattern),
                                .sharding = std::move(sharding),
                                .mesh = std::move(mesh),
                                .ranks = std::move(ranks),
                                .name = std::move(name),
                                .transpose = transpose,
                                .skip = skip};
            if (type.has_value()) self->type = ElementType(*type);
          },
          nb::arg("pattern"), nb::arg("sharding"), nb::arg("mesh"), nb::arg("ranks"),
          nb::arg("type").none(), nb::arg("name"), nb::arg("transpose"), nb::arg("skip"));
}

}  // namespace agmm::python
