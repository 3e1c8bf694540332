// agmmctl tensor put, get: contents from files and to files.
#include <CLI/App.hpp>
#include <iostream>
#include <memory>
#include <string>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "client/ctl/arguments.h"
#include "client/ctl/interrupt.h"
#include "client/ctl/progress_bar.h"
#include "client/ctl/tensor_report.h"
#include "client/ctl/tensor_spec.h"
#include "client/ctl/to_json.h"
#include "client/ctl/verbs.h"
#include "client/ctl/world.h"
#include "client/npy_transfer.h"
#include "kernels/base/status.h"
#include "proto/convert/problem.h"

namespace agmm {
namespace {

int64_t Bytes(int64_t rows, int64_t cols, DType dtype) { return rows * cols * SizeOf(dtype); }

struct PutFlags {
  std::string name, file;
  SpecFlags spec;
};

absl::StatusOr<std::unique_ptr<NpyReader>> OpenInput(const PutFlags& flags) {
  if (flags.spec.shape.empty()) return NpyReader::Open(flags.file);
  if (flags.spec.dtype.empty()) {
    return absl::InvalidArgumentError(absl::StrFormat(
        "--shape says that %s is a raw file; say --dtype f32, bf16 or f16, too", flags.file));
  }
  AGMM_ASSIGN_OR_RETURN(const Dimensions shape, ParseDimensions(flags.spec.shape));
  AGMM_ASSIGN_OR_RETURN(const DType dtype, ParseDType(flags.spec.dtype));
  return NpyReader::OpenRaw(flags.file, shape.rows, shape.cols, dtype);
}

absl::Status RunPut(const PutFlags& flags, const Options& options) {
  AGMM_ASSIGN_OR_RETURN(const v1::TensorRef ref, ParseTensorRef(flags.name));
  AGMM_ASSIGN_OR_RETURN(const std::unique_ptr<NpyReader> file, OpenInput(flags));
  DType dtype = file->dtype();
  if (!flags.spec.dtype.empty()) {
    AGMM_ASSIGN_OR_RETURN(dtype, ParseDType(flags.spec.dtype));
  }
  AGMM_ASSIGN_OR_RETURN(const std::unique_ptr<Connection> connection, Connect(options));
  v1::BeginUpload begin;
  std::string sequencer;  // of its id
  if (ref.has_tensor_id()) {
    AGMM_RETURN_IF_ERROR(RefuseSpread(flags.spec, flags.name));
    AGMM_ASSIGN_OR_RETURN(const v1::Tensor tensor, connection->GetTensor(ref));
    AGMM_ASSIGN_OR_RETURN(const DType its, FromProto(tensor.spec().dtype()));
    if (!flags.spec.dtype.empty() && flags.spec.shape.empty() && its != dtype) {
      return absl::InvalidArgumentError(absl::StrFormat("--dtype %s, but %s is %s; leave it out",
                                                        flags.spec.dtype, flags.name, Name(its)));
    }
    if (tensor.spec().rows() != file->rows() || tensor.spec().cols() != file->cols()) {
      return absl::InvalidArgumentError(absl::StrFormat(
          "%s is %d x %d and %s is %d x %d; give a name to make a new tensor", flags.file,
          file->rows(), file->cols(), flags.name, tensor.spec().rows(), tensor.spec().cols()));
    }
    dtype = its;
    begin.set_tensor_id(ref.tensor_id());
    sequencer = tensor.sequencer();
  } else {
    begin.mutable_put()->set_name(ref.name());
    AGMM_ASSIGN_OR_RETURN(
        *begin.mutable_put()->mutable_spec(),
        MakeSpec(connection.get(), flags.spec, {file->rows(), file->cols()}, dtype));
  }
  // Ctrl-C ends the upload; what was new of it is freed.
  const Interrupt interrupt([&] { connection->Interrupt(); });
  absl::StatusOr<v1::Tensor> tensor;
  {
    ProgressBar bar(flags.file, Bytes(file->rows(), file->cols(), dtype));
    tensor = UploadFile(connection.get(), begin, *file, dtype, bar.progress(), sequencer);
  }
  if (absl::IsCancelled(tensor.status())) {
    return absl::CancelledError(absl::StrFormat(
        "the upload of %s is cancelled; what was new of %s is freed", flags.file, flags.name));
  }
  AGMM_RETURN_IF_ERROR(TransferError(tensor.status(), absl::StrCat(flags.name, " is not written")));
  PrintTensor(*tensor, options);
  return absl::OkStatus();
}

struct GetFlags {
  std::string name, file;
  bool raw = false;
};

absl::Status RunGet(const GetFlags& flags, const Options& options) {
  AGMM_ASSIGN_OR_RETURN(const std::unique_ptr<Connection> connection, Connect(options));
  AGMM_ASSIGN_OR_RETURN(const v1::Tensor found, FindTensor(connection.get(), flags.name));
  const int64_t rows = found.spec().rows(), cols = found.spec().cols();
  AGMM_ASSIGN_OR_RETURN(const DType dtype, FromProto(found.spec().dtype()));
  AGMM_ASSIGN_OR_RETURN(const std::unique_ptr<NpyWriter> file,
                        flags.raw ? NpyWriter::CreateRaw(flags.file, rows, cols, dtype)
                                  : NpyWriter::Create(flags.file, rows, cols, FileDType(dtype)));
  v1::TensorRef ref;
  ref.set_tensor_id(found.tensor_id());
  const Interrupt interrupt([&] { connection->Interrupt(); });
  absl::StatusOr<v1::Tensor> tensor;
  {
    ProgressBar bar(flags.file, Bytes(rows, cols, dtype));
    tensor = DownloadFile(connection.get(), ref, file.get(), bar.progress(), found.sequencer());
  }
  AGMM_RETURN_IF_ERROR(TransferError(tensor.status(), absl::StrCat(flags.file, " is not written")));
  AGMM_RETURN_IF_ERROR(file->Commit());
  const SavedFile saved{flags.file, flags.raw, file->dtype()};
  if (options.json)
    std::cout << JsonLine(ToJson(*tensor, saved));
  else
    std::cout << TensorLine(*tensor) << "\n" << SavedLine(*tensor, saved) << "\n";
  return absl::OkStatus();
}

constexpr char kPutFooter[] =
    "A name in use: same shape, dtype, sharding and mesh rewrite its contents, in turn with its "
    "jobs; else a new tensor takes the name once it is whole, and the old one is deleted. "
    "Ctrl-C ends the upload and frees its space.";

}  // namespace

void AddTensorPut(CLI::App* group, const Options& options, Action* action) {
  auto put = std::make_shared<PutFlags>();
  CLI::App* verb = group->add_subcommand("put", "Make or rewrite a tensor from a file");
  verb->add_option("NAME", put->name, "The tensor: a name, or #12 to rewrite that one")->required();
  verb->add_option("FILE", put->file, "An .npy matrix of f32 or f16; any file with --shape")
      ->required();
  AddSpecFlags(verb, &put->spec);
  verb->add_option("--dtype", put->spec.dtype, "f32, bf16 or f16 (default: the file's)");
  verb->add_option("--shape", put->spec.shape,
                   "ROWSxCOLS: FILE is raw, row-major elements of --dtype, little endian");
  verb->footer(kPutFooter);
  verb->callback(
      [put, &options, action] { *action = [put, &options] { return RunPut(*put, options); }; });
}

void AddTensorGet(CLI::App* group, const Options& options, Action* action) {
  auto get = std::make_shared<GetFlags>();
  CLI::App* verb = group->add_subcommand("get", "Write a tensor's contents to a file");
  verb->add_option("NAME", get->name, "The tensor: its name, or #12 for an id")->required();
  verb->add_option("FILE", get->file,
                   "The .npy file; bf16 is written as f32, which holds it exactly")
      ->required();
  verb->add_flag("--raw", get->raw, "Only the elements, row-major, as they are; bf16 stays bf16");
  verb->footer(
      "Waits for the jobs that were submitted before and write it. FILE appears when whole.");
  verb->callback(
      [get, &options, action] { *action = [get, &options] { return RunGet(*get, options); }; });
}

}  // namespace agmm
