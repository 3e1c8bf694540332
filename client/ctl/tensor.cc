// agmmctl tensor list, show, rm: what lies on the devices.
#include <CLI/App.hpp>
#include <iostream>
#include <memory>
#include <string>

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
    std::cout << ToJson(list, status).dump() << "\n";
  else
    std::cout << TensorTable(list) << "\n" << MemoryTable(status);
  return absl::OkStatus();
}

absl::Status RunShow(const std::string& name, const Options& options) {
  AGMM_ASSIGN_OR_RETURN(const std::unique_ptr<Connection> connection, Connect(options));
  AGMM_ASSIGN_OR_RETURN(const v1::Tensor tensor, FindTensor(connection.get(), name));
  if (options.json)
    std::cout << ToJson(tensor).dump() << "\n";
  else
    std::cout << TensorText(tensor);
  return absl::OkStatus();
}

absl::Status RunRemove(const std::string& name, const Options& options) {
  AGMM_ASSIGN_OR_RETURN(const std::unique_ptr<Connection> connection, Connect(options));
  AGMM_ASSIGN_OR_RETURN(const v1::Tensor tensor, FindTensor(connection.get(), name));
  AGMM_RETURN_IF_ERROR(connection->DeleteTensor(tensor.tensor_id()));
  // Says nothing, as rm does; machines get what was there.
  if (options.json) std::cout << ToJson(tensor).dump() << "\n";
  return absl::OkStatus();
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
  AddNamed(group, "rm", "Delete a tensor; its space is free once no job uses it", RunRemove,
           options, action);
}

}  // namespace agmm
