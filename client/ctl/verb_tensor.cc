// agmmctl tensor: matrices that stay on the devices between jobs.
#include <CLI/App.hpp>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "client/ctl/arguments.h"
#include "client/ctl/interrupt.h"
#include "client/ctl/ready_world.h"
#include "client/ctl/report.h"
#include "client/ctl/terminal_line.h"
#include "client/ctl/verbs.h"
#include "client/files/matrix_transfer.h"
#include "kernels/base/status.h"
#include "kernels/schedule/spec.h"
#include "proto/convert/plan_inputs.h"

namespace agmm {
namespace {

constexpr char kReplicated[] = "[M, N]";

// The flags of put and fill: the tensor to write, and the spec of a new one.
struct SpecFlags {
  std::string name, shape, dtype, sharding, mesh, ranks;
};

// Adds NAME, --sharding, --mesh and --ranks.
void AddSpecFlags(CLI::App* verb, SpecFlags* flags) {
  verb->add_option("NAME", flags->name,
                   "The tensor: its name, or the ID (#12) or handle of an existing one")
      ->required();
  verb->add_option("--sharding", flags->sharding,
                   "The mesh axes that split each dimension, such as '[K, N_x]' (default: "
                   "'[M, N]', a copy on every rank of the mesh)");
  verb->add_option("--mesh", flags->mesh,
                   "Axes and their sizes, such as x=4 or dp=2,tp=2 (default: x=<number of ranks>)");
  verb->add_option(
      "--ranks", flags->ranks,
      "World ranks of the mesh, such as 0-3 or 0,2,4 (default: the first ones; without --mesh, "
      "all ranks of rank 0's kind)");
}

// Returns the spec of a tensor with the sharding in the flags. Without flags, it is a copy on every
// rank of the world, whose size the daemon is asked for.
absl::StatusOr<v1::TensorSpec> MakeSpec(Connection* connection, const SpecFlags& flags,
                                        Dimensions shape, DType dtype) {
  AGMM_ASSIGN_OR_RETURN(const Mesh mesh, MeshOfWorld(connection, flags.mesh, flags.ranks));
  AGMM_ASSIGN_OR_RETURN(const Tensor tensor,
                        ParseTensor(flags.sharding.empty() ? kReplicated : flags.sharding, mesh,
                                    shape.rows, shape.cols, dtype));
  return ToProto(mesh, tensor);
}

// Refuses a flag that only a new tensor can have.
absl::Status RefuseForExisting(const char* flag, const std::string& value, const SpecFlags& flags) {
  if (value.empty()) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrFormat("%s \"%s\" is for new tensors, but %s exists; leave it out, or give %s", flag,
                      value, flags.name, flags.name.front() == '#' ? "a name" : "a --shape, too"));
}

absl::Status RefuseSpread(const SpecFlags& flags) {
  AGMM_RETURN_IF_ERROR(RefuseForExisting("--sharding", flags.sharding, flags));
  AGMM_RETURN_IF_ERROR(RefuseForExisting("--mesh", flags.mesh, flags));
  return RefuseForExisting("--ranks", flags.ranks, flags);
}

void PrintTensor(const v1::Tensor& tensor, const Options& options) {
  PrintResult(options, ToJson(tensor), absl::StrCat(TensorLine(tensor), "\n"));
}

struct PutFlags : SpecFlags {
  std::string file;
};

absl::StatusOr<std::unique_ptr<MatrixReader>> OpenInput(const PutFlags& flags) {
  if (flags.shape.empty()) return OpenNpy(flags.file);
  if (flags.dtype.empty()) {
    return absl::InvalidArgumentError(absl::StrFormat(
        "--shape makes %s a raw file, which needs --dtype: f32, bf16 or f16", flags.file));
  }
  AGMM_ASSIGN_OR_RETURN(const Dimensions shape, ParseDimensions(flags.shape));
  AGMM_ASSIGN_OR_RETURN(const DType dtype, ParseDType(flags.dtype));
  return OpenRaw(flags.file, shape.rows, shape.cols, dtype);
}

absl::Status RunPut(const PutFlags& flags, const Options& options, Connection* connection) {
  AGMM_ASSIGN_OR_RETURN(const NamedTensor named, ParseTensorRef(flags.name));
  const v1::TensorRef& ref = named.ref;
  AGMM_ASSIGN_OR_RETURN(const std::unique_ptr<MatrixReader> file, OpenInput(flags));
  DType dtype = file->dtype();
  if (!flags.dtype.empty()) {
    AGMM_ASSIGN_OR_RETURN(dtype, ParseDType(flags.dtype));
  }
  v1::BeginUpload begin;
  std::string sequencer;  // the one that assigned the id
  if (ref.has_tensor_id()) {
    AGMM_RETURN_IF_ERROR(RefuseSpread(flags));
    AGMM_ASSIGN_OR_RETURN(const v1::Tensor tensor, FindTensor(connection, flags.name));
    AGMM_ASSIGN_OR_RETURN(const DType its, FromProto(tensor.spec().dtype()));
    if (!flags.dtype.empty() && flags.shape.empty() && its != dtype) {
      return absl::InvalidArgumentError(absl::StrFormat(
          "--dtype is %s, but %s is %s; leave --dtype out", flags.dtype, flags.name, Name(its)));
    }
    if (tensor.spec().rows() != file->rows() || tensor.spec().cols() != file->cols()) {
      return absl::InvalidArgumentError(absl::StrFormat(
          "%s is %d x %d, but %s is %d x %d; give a name to make a new tensor", file->name(),
          file->rows(), file->cols(), flags.name, tensor.spec().rows(), tensor.spec().cols()));
    }
    dtype = its;
    begin.set_tensor_id(ref.tensor_id());
    sequencer = tensor.sequencer();
  } else {
    begin.mutable_put()->set_name(ref.name());
    AGMM_ASSIGN_OR_RETURN(*begin.mutable_put()->mutable_spec(),
                          MakeSpec(connection, flags, {file->rows(), file->cols()}, dtype));
  }
  // Ctrl-C ends the upload, which frees a new tensor.
  const Interrupt interrupt(connection);
  absl::StatusOr<v1::Tensor> tensor;
  {
    ProgressLine line(file->name(), file->rows() * file->cols() * SizeOf(dtype));
    tensor = UploadFile(connection, begin, *file, dtype, line.progress(), sequencer);
  }
  if (absl::IsCancelled(tensor.status()) && !interrupt.happened())
    tensor = absl::UnavailableError(tensor.status().message());  // the daemon is stopping
  if (absl::IsCancelled(tensor.status())) {
    return absl::CancelledError(absl::StrFormat(
        "the upload of %s was cancelled: %s is freed if it was new, and may have lost its contents "
        "otherwise; see `agmmctl tensor show %s`",
        file->name(), flags.name, flags.name));
  }
  AGMM_RETURN_IF_ERROR(
      TransferError(tensor.status(), absl::StrCat(flags.name, " was not written")));
  PrintTensor(*tensor, options);
  return absl::OkStatus();
}

struct GetFlags {
  std::string name, file;
  bool raw = false;
};

absl::Status RunGet(const GetFlags& flags, const Options& options, Connection* connection) {
  AGMM_ASSIGN_OR_RETURN(const v1::Tensor found, FindTensor(connection, flags.name));
  const int64_t rows = found.spec().rows(), cols = found.spec().cols();
  AGMM_ASSIGN_OR_RETURN(const DType dtype, FromProto(found.spec().dtype()));
  AGMM_ASSIGN_OR_RETURN(
      const std::unique_ptr<NpyWriter> file,
      NpyWriter::Create(flags.file, rows, cols, flags.raw ? dtype : FileDType(dtype), flags.raw));
  const Interrupt interrupt(connection);
  AGMM_ASSIGN_OR_RETURN(const v1::Tensor tensor,
                        FetchFile(connection, found, flags.file, file.get()));
  const SavedFile saved{flags.file, flags.raw, file->dtype(), file->non_finite()};
  PrintResult(options, ToJson(tensor, saved),
              absl::StrCat(TensorLine(tensor), "\n", SavedLine(tensor, saved), "\n"), flags.file);
  return absl::OkStatus();
}

constexpr uint64_t kDefaultSeed = 1;

struct FillFlags : SpecFlags {
  std::string kind = "uniform";
  std::optional<uint64_t> seed;
  std::optional<double> value;
};

absl::StatusOr<v1::Fill> MakeFill(const FillFlags& flags) {
  v1::Fill fill;
  fill.set_seed(flags.seed.value_or(kDefaultSeed));
  for (v1::Fill::Kind kind :
       {v1::Fill::KIND_UNIFORM, v1::Fill::KIND_INTEGERS, v1::Fill::KIND_CONSTANT}) {
    if (EnumName(kind) == flags.kind) fill.set_kind(kind);
  }
  if (fill.kind() == v1::Fill::KIND_UNSPECIFIED) {
    return absl::InvalidArgumentError(absl::StrFormat(
        "--kind \"%s\" is not known; use uniform, integers or constant", flags.kind));
  }
  const bool constant = fill.kind() == v1::Fill::KIND_CONSTANT;
  if (constant != flags.value.has_value()) {
    return absl::InvalidArgumentError(
        constant
            ? "--kind constant needs a --value, such as --value 1"
            : absl::StrFormat("--value needs --kind constant, but the kind is %s", flags.kind));
  }
  if (constant && flags.seed.has_value()) {
    return absl::InvalidArgumentError(
        "--seed has no effect beside --kind constant; leave out one of them");
  }
  fill.set_value(flags.value.value_or(0));
  return fill;
}

// Returns the spec of the tensor `ref`: that of the existing tensor, unless a shape is given.
absl::StatusOr<v1::TensorSpec> SpecToFill(const v1::TensorRef& ref, const FillFlags& flags,
                                          Connection* connection) {
  if (!flags.shape.empty()) {
    AGMM_ASSIGN_OR_RETURN(const Dimensions shape, ParseDimensions(flags.shape));
    AGMM_ASSIGN_OR_RETURN(const DType dtype, ParseDType(flags.dtype.empty() ? "f32" : flags.dtype));
    return MakeSpec(connection, flags, shape, dtype);
  }
  const absl::StatusOr<v1::Tensor> existing = connection->GetTensor(ref);
  if (absl::IsNotFound(existing.status())) {
    return absl::InvalidArgumentError(absl::StrFormat(
        "%s does not exist, and a new tensor needs a shape; give it, such as --shape 4096x4096",
        flags.name));
  }
  AGMM_RETURN_IF_ERROR(existing.status());
  AGMM_RETURN_IF_ERROR(RefuseSpread(flags));
  AGMM_RETURN_IF_ERROR(RefuseForExisting("--dtype", flags.dtype, flags));
  return existing->spec();
}

absl::Status RunFill(const FillFlags& flags, const Options& options, Connection* connection) {
  AGMM_ASSIGN_OR_RETURN(const NamedTensor named, ParseTensorRef(flags.name));
  const v1::TensorRef& ref = named.ref;
  v1::FillTensorRequest request;
  AGMM_ASSIGN_OR_RETURN(*request.mutable_fill(), MakeFill(flags));
  if (ref.has_tensor_id()) {
    AGMM_RETURN_IF_ERROR(RefuseSpread(flags));
    AGMM_RETURN_IF_ERROR(RefuseForExisting("--shape", flags.shape, flags));
    AGMM_RETURN_IF_ERROR(RefuseForExisting("--dtype", flags.dtype, flags));
    // The call cannot say of which sequencer the id is.
    if (!named.sequencer.empty()) AGMM_RETURN_IF_ERROR(FindTensor(connection, flags.name).status());
    request.set_tensor_id(ref.tensor_id());
  } else {
    request.mutable_put()->set_name(ref.name());
    AGMM_ASSIGN_OR_RETURN(*request.mutable_put()->mutable_spec(),
                          SpecToFill(ref, flags, connection));
  }
  const Interrupt interrupt(connection);
  absl::StatusOr<v1::Tensor> tensor;
  {
    const TerminalLine line = WaitLine(absl::StrCat("fill ", flags.name), kFillingCall);
    tensor = connection->FillTensor(request);
  }
  AGMM_RETURN_IF_ERROR(TransferError(tensor.status(), absl::StrCat(flags.name, " was not filled")));
  PrintTensor(*tensor, options);
  return absl::OkStatus();
}

struct NoFlags {};

absl::Status RunList(const NoFlags&, const Options& options, Connection* connection) {
  AGMM_ASSIGN_OR_RETURN(const v1::ListTensorsResponse list, connection->ListTensors());
  AGMM_ASSIGN_OR_RETURN(const v1::GetStatusResponse status, connection->GetStatus());
  PrintResult(options, ToJson(list, status),
              absl::StrCat(TensorTable(list), "\n", MemoryTable(status)));
  return absl::OkStatus();
}

absl::Status RunShow(const std::string& name, const Options& options, Connection* connection) {
  AGMM_ASSIGN_OR_RETURN(const v1::Tensor tensor, FindTensor(connection, name));
  PrintResult(options, ToJson(tensor), TensorText(tensor));
  return absl::OkStatus();
}

absl::Status RemoveOne(Connection* connection, const std::string& name, const Options& options) {
  AGMM_ASSIGN_OR_RETURN(const v1::Tensor tensor, FindTensor(connection, name));
  AGMM_RETURN_IF_ERROR(connection->DeleteTensor(IdOf(tensor)));
  PrintResult(options, ToJson(tensor), "");
  return absl::OkStatus();
}

// Goes on after a tensor that does not exist. The error has the code of the first one.
absl::Status RunRemove(const std::vector<std::string>& names, const Options& options,
                       Connection* connection) {
  for (const std::string& name : names) AGMM_RETURN_IF_ERROR(ParseTensorRef(name).status());
  std::vector<std::string> failed;
  absl::Status first;
  for (const std::string& name : names) {
    const absl::Status status = RemoveOne(connection, name, options);
    if (status.ok()) continue;
    if (!absl::IsNotFound(status))
      return names.size() == 1 ? status : Annotate(status, absl::StrCat("at ", name));
    if (first.ok()) first = status;
    failed.push_back(name);
  }
  if (first.ok() || names.size() == 1) return first;
  return absl::Status(first.code(),
                      absl::StrFormat("%d of %d tensors do not exist: %s; the others are deleted",
                                      failed.size(), names.size(), absl::StrJoin(failed, ", ")));
}

void AddTensorPut(CLI::App* group, Command* command) {
  auto put = std::make_shared<PutFlags>();
  CLI::App* verb = group->add_subcommand("put", "Create or rewrite a tensor from a file");
  AddSpecFlags(verb, put.get());
  verb->add_option(
          "FILE", put->file,
          "A matrix in an .npy file of f32 or f16, or a raw file with --shape; - is standard "
          "input")
      ->required();
  verb->add_option("--dtype", put->dtype,
                   "Type of the tensor's elements: f32, bf16 or f16 (default: the file's)");
  verb->add_option("--shape", put->shape,
                   "ROWSxCOLS of a raw FILE: only elements of --dtype, row-major, little endian");
  verb->footer(
      "If NAME exists with the same shape, dtype, sharding and mesh, its contents are rewritten "
      "after all earlier jobs. Otherwise a new tensor takes the name when its contents are "
      "complete, and the old tensor is deleted. Ctrl-C ends the upload and frees a new tensor.");
  OnVerb(verb, command, put, RunPut);
}

void AddTensorGet(CLI::App* group, Command* command) {
  auto get = std::make_shared<GetFlags>();
  CLI::App* verb = group->add_subcommand("get", "Write a tensor's contents to a file");
  verb->add_option("NAME", get->name, "The tensor: its name, its ID as #12, or its handle")
      ->required();
  verb->add_option("FILE", get->file,
                   "The .npy file to write; bf16 is written as f32, which holds it exactly; - is "
                   "standard output")
      ->required();
  verb->add_flag("--raw", get->raw,
                 "Write only the elements, row-major, in the tensor's dtype (also bf16)");
  verb->footer("Waits for earlier jobs that write the tensor. FILE appears when it is complete.");
  OnVerb(verb, command, get, RunGet);
}

void AddTensorFill(CLI::App* group, Command* command) {
  auto fill = std::make_shared<FillFlags>();
  CLI::App* verb =
      group->add_subcommand("fill", "Create or rewrite a tensor with generated values");
  verb->add_option(
      "--shape", fill->shape,
      "ROWSxCOLS of a new tensor, such as 4096x4096 (default: the shape, dtype and sharding "
      "of the existing tensor)");
  verb->add_option("--dtype", fill->dtype,
                   "Type of a new tensor's elements: f32, bf16 or f16 (default: f32)");
  AddSpecFlags(verb, fill.get());
  verb->add_option(
          "--kind", fill->kind,
          "The values: uniform in [-1, 1), integers from -4 to 4, or constant (see --value)")
      ->capture_default_str();
  verb->add_option("--seed", fill->seed,
                   absl::StrCat("Seed of the values, which do not depend on the mesh or the "
                                "sharding (default: ",
                                kDefaultSeed, ")"));
  verb->add_option("--value", fill->value, "Value of every element with --kind constant");
  OnVerb(verb, command, fill, RunFill);
}

}  // namespace

void AddTensor(CLI::App* app, Command* command) {
  CLI::App* group = app->add_subcommand("tensor", "Matrices that stay on the devices between jobs");
  group->require_subcommand(1);
  AddTensorPut(group, command);
  AddTensorGet(group, command);
  AddTensorFill(group, command);
  AddTensorLoad(group, command);
  AddTensorSave(group, command);
  OnVerb(group->add_subcommand("list", "List all tensors, and the memory in use by class"), command,
         std::make_shared<NoFlags>(), RunList);
  auto name = std::make_shared<std::string>();
  CLI::App* show =
      group->add_subcommand("show", "Show one tensor: its sharding, its bytes, its owner");
  show->add_option("NAME", *name, "The tensor: its name, its ID as #12, or its handle")->required();
  OnVerb(show, command, name, RunShow);
  auto names = std::make_shared<std::vector<std::string>>();
  CLI::App* remove =
      group->add_subcommand("rm", "Delete tensors; memory is freed when no job uses them");
  remove->add_option("NAME", *names, "The tensors: their names, their IDs as #12, or their handles")
      ->required();
  OnVerb(remove, command, names, RunRemove);
}

}  // namespace agmm
