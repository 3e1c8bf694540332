// agmmctl tensor list, show, rm: what lies on the devices.
#include <CLI/App.hpp>
#include <iostream>
#include <memory>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "client/ctl/arguments.h"
#include "client/ctl/tensor_report.h"
#include "client/ctl/to_json.h"
#include "client/ctl/verbs.h"
#include "client/ctl/world.h"
#include "kernels/base/status.h"

namespace agmm {
namespace {

absl::Status RunList(const Options& options) {
  AGMM_ASSIGN_OR_RETURN(const std::unique_ptr<Connection> connection, Connect(options));
  AGMM_ASSIGN_OR_RETURN(const v1::ListTensorsResponse list, connection->ListTensors());
  AGMM_ASSIGN_OR_RETURN(const v1::GetStatusResponse status, connection->GetStatus());
  if (options.json)
    std::cout << JsonLine(ToJson(list, status));
  else
    std::cout << TensorTable(list) << "\n" << MemoryTable(status);
  return absl::OkStatus();
}

absl::Status RunShow(const std::string& name, const Options& options) {
  AGMM_ASSIGN_OR_RETURN(const std::unique_ptr<Connection> connection, Connect(options));
  AGMM_ASSIGN_OR_RETURN(const v1::Tensor tensor, FindTensor(connection.get(), name));
  if (options.json)
    std::cout << JsonLine(ToJson(tensor));
  else
    std::cout << TensorText(tensor);
  return absl::OkStatus();
}

absl::Status RemoveOne(Connection* connection, const std::string& name, const Options& options) {
  AGMM_ASSIGN_OR_RETURN(const v1::Tensor tensor, FindTensor(connection, name));
  AGMM_RETURN_IF_ERROR(connection->DeleteTensor(IdOf(tensor)));
  // Says nothing, as rm does; machines get what was there.
  if (options.json) std::cout << JsonLine(ToJson(tensor));
  return absl::OkStatus();
}

// Those that are not there hold up no others. The error has the first one's code.
absl::Status RunRemove(const std::vector<std::string>& names, const Options& options) {
  for (const std::string& name : names) AGMM_RETURN_IF_ERROR(ParseTensorRef(name).status());
  AGMM_ASSIGN_OR_RETURN(const std::unique_ptr<Connection> connection, Connect(options));
  std::vector<std::string> failed;
  absl::Status first;
  for (const std::string& name : names) {
    const absl::Status status = RemoveOne(connection.get(), name, options);
    if (status.ok()) continue;
    if (!absl::IsNotFound(status))
      return names.size() == 1 ? status : Annotate(status, absl::StrCat("at ", name));
    if (first.ok()) first = status;
    failed.push_back(name);
  }
  if (first.ok() || names.size() == 1) return first;
  return absl::Status(first.code(),
                      absl::StrFormat("%d of %d tensors are not there: %s; the others are deleted",
                                      failed.size(), names.size(), absl::StrJoin(failed, ", ")));
}

void AddNamed(CLI::App* group, const std::string& verb_name, const std::string& help,
              absl::Status (*run)(const std::string&, const Options&), const Options& options,
              Action* action) {
  auto name = std::make_shared<std::string>();
  CLI::App* verb = group->add_subcommand(verb_name, help);
  verb->add_option("NAME", *name, "The tensor: its name, or #12 for an id")->required();
  verb->callback([name, run, &options, action] {
    *action = [name, run, &options] { return run(*name, options); };
  });
}

}  // namespace

void AddTensor(CLI::App& app, const Options& options, Action* action) {
  CLI::App* group = app.add_subcommand("tensor", "Matrices that stay on the devices");
  group->require_subcommand(1);
  AddTensorPut(group, options, action);
  AddTensorGet(group, options, action);
  AddTensorFill(group, options, action);
  group->add_subcommand("list", "All tensors, and the memory by class")
      ->callback([&options, action] { *action = [&options] { return RunList(options); }; });
  AddNamed(group, "show", "One tensor: its place, its bytes, its owner", RunShow, options, action);
  auto names = std::make_shared<std::vector<std::string>>();
  CLI::App* remove =
      group->add_subcommand("rm", "Delete tensors; their space is free once no job uses them");
  remove->add_option("NAME", *names, "The tensors: their names, or #12 for an id")->required();
  remove->callback([names, &options, action] {
    *action = [names, &options] { return RunRemove(*names, options); };
  });
}

}  // namespace agmm
