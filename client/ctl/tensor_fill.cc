// agmmctl tensor fill: contents made on the devices.
#include <CLI/App.hpp>
#include <memory>
#include <optional>
#include <string>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "client/ctl/arguments.h"
#include "client/ctl/interrupt.h"
#include "client/ctl/tensor_spec.h"
#include "client/ctl/verbs.h"
#include "client/ctl/wait_line.h"
#include "client/ctl/world.h"
#include "kernels/base/status.h"

namespace agmm {
namespace {

struct FillFlags {
  std::string name, kind = "uniform";
  SpecFlags spec;
  uint64_t seed = 1;
  std::optional<double> value;
};

absl::StatusOr<v1::Fill> MakeFill(const FillFlags& flags) {
  v1::Fill fill;
  fill.set_seed(flags.seed);
  if (flags.kind == "uniform") {
    fill.set_kind(v1::Fill::KIND_UNIFORM);
  } else if (flags.kind == "integers") {
    fill.set_kind(v1::Fill::KIND_INTEGERS);
  } else if (flags.kind == "constant") {
    fill.set_kind(v1::Fill::KIND_CONSTANT);
  } else {
    return absl::InvalidArgumentError(absl::StrFormat(
        "--kind \"%s\" is not known; use uniform, integers or constant", flags.kind));
  }
  const bool constant = fill.kind() == v1::Fill::KIND_CONSTANT;
  if (constant != flags.value.has_value()) {
    return absl::InvalidArgumentError(
        constant
            ? "--kind constant needs a --value, such as --value 1"
            : absl::StrFormat("--value is for --kind constant and the kind is %s", flags.kind));
  }
  fill.set_value(flags.value.value_or(0));
  return fill;
}

absl::Status RunFill(const FillFlags& flags, const Options& options) {
  AGMM_ASSIGN_OR_RETURN(const v1::TensorRef ref, ParseTensorRef(flags.name));
  v1::FillTensorRequest request;
  AGMM_ASSIGN_OR_RETURN(*request.mutable_fill(), MakeFill(flags));
  AGMM_ASSIGN_OR_RETURN(const std::unique_ptr<Connection> connection, Connect(options));
  if (ref.has_tensor_id()) {
    AGMM_RETURN_IF_ERROR(RefuseSpread(flags.spec, flags.name));
    request.set_tensor_id(ref.tensor_id());
  } else {
    AGMM_ASSIGN_OR_RETURN(const Dimensions shape, ParseDimensions(flags.spec.shape));
    AGMM_ASSIGN_OR_RETURN(const DType dtype, ParseDType(flags.spec.dtype));
    request.mutable_put()->set_name(ref.name());
    AGMM_ASSIGN_OR_RETURN(*request.mutable_put()->mutable_spec(),
                          MakeSpec(connection.get(), flags.spec, shape, dtype));
  }
  const Interrupt interrupt([&] { connection->Interrupt(); });
  absl::StatusOr<v1::Tensor> tensor;
  {
    const WaitLine line(absl::StrCat("fill ", flags.name), kFillingCall);
    tensor = connection->FillTensor(request);
  }
  AGMM_RETURN_IF_ERROR(TransferError(tensor.status(), absl::StrCat(flags.name, " is not filled")));
  PrintTensor(*tensor, options);
  return absl::OkStatus();
}

}  // namespace

void AddTensorFill(CLI::App* group, const Options& options, Action* action) {
  auto fill = std::make_shared<FillFlags>();
  CLI::App* verb =
      group->add_subcommand("fill", "Make or rewrite a tensor with values made on the devices");
  verb->add_option("NAME", fill->name, "The tensor: a name, or #12 to rewrite that one")
      ->required();
  verb->add_option("--shape", fill->spec.shape, "ROWSxCOLS, such as 4096x4096");
  fill->spec.dtype = "f32";
  verb->add_option("--dtype", fill->spec.dtype, "f32, bf16 or f16")->capture_default_str();
  AddSpecFlags(verb, &fill->spec);
  verb->add_option("--kind", fill->kind,
                   "uniform in [-1, 1); integers from -4 to 4; constant, see --value")
      ->capture_default_str();
  verb->add_option("--seed", fill->seed, "The same values for the same seed, however it is sharded")
      ->capture_default_str();
  verb->add_option("--value", fill->value, "Of every element, with --kind constant");
  verb->callback(
      [fill, &options, action] { *action = [fill, &options] { return RunFill(*fill, options); }; });
}

}  // namespace agmm
