// agmmctl tensor save: tensors to a file.
#include <CLI/App.hpp>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "client/connect/tensor_transfer.h"
#include "client/ctl/interrupt.h"
#include "client/ctl/ready_world.h"
#include "client/ctl/report.h"
#include "client/ctl/terminal_line.h"
#include "client/ctl/verbs.h"
#include "client/files/tensor_file.h"
#include "kernels/base/deadline.h"
#include "kernels/base/status.h"
#include "kernels/base/units.h"
#include "proto/convert/plan_inputs.h"

namespace agmm {
namespace {

struct SaveFlags {
  std::string file;
  std::vector<std::string> names, metadata;
};

absl::StatusOr<std::map<std::string, std::string>> ParseMetadata(
    const std::vector<std::string>& entries) {
  std::map<std::string, std::string> metadata;
  for (const std::string& entry : entries) {
    const size_t equals = entry.find('=');
    if (equals == std::string::npos || equals == 0 ||
        !metadata.emplace(entry.substr(0, equals), entry.substr(equals + 1)).second) {
      return absl::InvalidArgumentError(absl::StrFormat(
          "--metadata %s is not KEY=VALUE with a new key; write an entry such as format=pt",
          QuotedName(entry)));
    }
  }
  return metadata;
}

bool IsTensorFile(absl::string_view name) {
  return absl::EndsWith(name, ".safetensors") || absl::EndsWith(name, ".npy");
}

// Refuses a file behind the names.
absl::Status CheckOrder(const SaveFlags& flags) {
  if (IsTensorFile(flags.file) || !IsTensorFile(flags.names.back())) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrFormat("the file comes first: agmmctl tensor save %s %s", flags.names.back(),
                      flags.names.size() == 1 ? flags.file : absl::StrCat(flags.file, " ...")));
}

// Finds the tensors, by the names that they have in the file.
absl::StatusOr<std::map<std::string, v1::Tensor>> FindAll(Connection* connection,
                                                          const SaveFlags& flags,
                                                          std::vector<TensorToSave>* to_save) {
  std::map<std::string, v1::Tensor> found;
  for (const std::string& name : flags.names) {
    AGMM_ASSIGN_OR_RETURN(const v1::Tensor tensor, FindTensor(connection, name));
    if (tensor.name().empty() || !found.emplace(tensor.name(), tensor).second) {
      return absl::InvalidArgumentError(
          absl::StrFormat("%s %s; a file has each tensor once, by its name", name,
                          tensor.name().empty() ? "has no name" : "is given twice"));
    }
    AGMM_ASSIGN_OR_RETURN(const DType dtype, FromProto(tensor.spec().dtype()));
    to_save->push_back({tensor.name(), tensor.spec().rows(), tensor.spec().cols(), dtype});
  }
  return found;
}

// Appends the contents of `tensor`.
absl::StatusOr<v1::Tensor> SaveOne(Connection* connection, const v1::Tensor& tensor,
                                   TensorFileWriter* file, const Progress& progress) {
  v1::TensorRef ref;
  ref.set_tensor_id(tensor.tensor_id());
  const WriteFn write = [file](const v1::Tensor&, int64_t, absl::string_view data) {
    return file->Append(data);
  };
  return Download(connection, ref, write, progress, /*limits=*/{}, tensor.sequencer());
}

absl::Status RunSave(const SaveFlags& flags, const Options& options, Connection* connection) {
  AGMM_RETURN_IF_ERROR(CheckOrder(flags));
  AGMM_ASSIGN_OR_RETURN(const auto metadata, ParseMetadata(flags.metadata));
  std::vector<TensorToSave> to_save;
  AGMM_ASSIGN_OR_RETURN(const auto found, FindAll(connection, flags, &to_save));
  int64_t total_bytes = 0, before = 0;
  for (const TensorToSave& each : to_save)
    total_bytes += each.rows * each.cols * SizeOf(each.dtype);
  AGMM_ASSIGN_OR_RETURN(const std::unique_ptr<TensorFileWriter> file,
                        TensorFileWriter::Create(flags.file, std::move(to_save), metadata));
  const Interrupt interrupt(connection);
  Json json = {{"schema", "agmm.save.v1"}, {"file", flags.file}, {"tensors", Json::array()}};
  std::string text;
  {
    ProgressLine line(flags.file, total_bytes);
    const Progress shown = line.progress();
    for (const TensorToSave& each : file->tensors()) {
      const Progress progress = {[&](int64_t bytes) { shown.moved(before + bytes); },
                                 shown.reconnecting};
      const auto saved = SaveOne(connection, found.at(each.name), file.get(), progress);
      AGMM_RETURN_IF_ERROR(
          TransferError(Annotate(saved.status(), absl::StrCat("tensor ", QuotedName(each.name))),
                        absl::StrCat(flags.file, " was not written")));
      json["tensors"].push_back(ToJson(*saved));
      absl::StrAppend(&text, TensorLine(*saved), "\n");
      before += each.rows * each.cols * SizeOf(each.dtype);
    }
  }
  AGMM_RETURN_IF_ERROR(file->Commit());
  absl::StrAppendFormat(&text, "%s: %s\n", flags.file,
                        Counted(static_cast<int64_t>(file->tensors().size()), "tensor"));
  PrintResult(options, json, text, flags.file);
  return absl::OkStatus();
}

}  // namespace

void AddTensorSave(CLI::App* group, Command* command) {
  auto save = std::make_shared<SaveFlags>();
  CLI::App* verb = group->add_subcommand("save", "Write tensors to a file, under their names");
  verb->add_option("FILE", save->file,
                   "The .safetensors file to write, or an .npy file for one tensor, which gets "
                   "bf16 as f32")
      ->required();
  verb->add_option("NAME", save->names,
                   "The tensors: their names, their IDs as #12, or their handles")
      ->required();
  verb->add_option("--metadata", save->metadata,
                   "KEY=VALUE in the header, such as format=pt, which transformers asks for; may "
                   "be repeated")
      ->allow_extra_args(false);
  verb->footer(
      "Waits for earlier jobs that write the tensors. Each tensor is read in one version. FILE "
      "appears when it is complete.");
  OnVerb(verb, command, save, RunSave);
}

}  // namespace agmm
