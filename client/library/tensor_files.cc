// Files of tensors, by way of the calls that put and get one tensor.
#include <algorithm>
#include <chrono>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "client/agmm.h"
#include "client/files/load_rules.h"
#include "client/files/tensor_file.h"
#include "client/library/client_state.h"
#include "client/library/to_public.h"
#include "kernels/base/deadline.h"
#include "kernels/base/status.h"
#include "proto/convert/plan_inputs.h"

namespace agmm {
namespace {

DType DTypeOf(ElementType type) {
  return type == ElementType::kBF16  ? DType::kBF16
         : type == ElementType::kF16 ? DType::kF16
                                     : DType::kF32;
}

ElementType ElementTypeOf(DType dtype) {
  return dtype == DType::kBF16  ? ElementType::kBF16
         : dtype == DType::kF16 ? ElementType::kF16
                                : ElementType::kF32;
}

std::vector<FileRule> FileRulesOf(const std::vector<LoadRule>& rules) {
  std::vector<FileRule> converted;
  for (const LoadRule& rule : rules) {
    FileRule& made = converted.emplace_back();
    made.pattern = rule.pattern;
    made.skip = rule.skip;
    made.transpose = rule.transpose;
    made.name = rule.name;
    if (rule.type.has_value()) made.dtype = DTypeOf(*rule.type);
  }
  return converted;
}

// `options` for one tensor of several, whose bytes count from `before` on, of `total_bytes`.
TransferOptions PartOf(const TransferOptions& options, int64_t before, int64_t total_bytes) {
  TransferOptions part = options;
  if (options.progress) {
    part.progress = [&options, before, total_bytes](int64_t moved_bytes, int64_t) {
      options.progress(before + moved_bytes, total_bytes);
    };
  }
  return part;
}

Status WithContext(const Status& status, const std::string& context) {
  return Status(status.code(), absl::StrCat(context, ": ", status.message()), status.reason());
}

// "m.safetensors: tensor "w" ...".
std::string ContextOf(const TensorFile& file, const PlannedTensor& tensor, absl::string_view what) {
  return absl::StrCat(file.name(), ": tensor ", QuotedName(tensor.stored->name), what);
}

// The error of a load after `loaded`.
Status LoadError(const Status& status, const TensorFile& file, const PlannedTensor& tensor,
                 const std::vector<LoadedFile::Loaded>& loaded) {
  std::vector<std::string> names;
  for (const LoadedFile::Loaded& each : loaded) names.push_back(each.tensor.name);
  const std::string before = names.empty() ? "none" : NamesText(names);
  return WithContext(
      status,
      ContextOf(file, tensor, absl::StrCat(" was not loaded (loaded before it: ", before, ")")));
}

TensorSpec SpecOf(const PlannedTensor& planned, const LoadRule& rule) {
  return {.rows = planned.layout.rows,
          .cols = planned.layout.cols,
          .type = ElementTypeOf(planned.dtype),
          .sharding = rule.sharding,
          .mesh = rule.mesh,
          .ranks = rule.ranks};
}

// Checks that the tensors can have their shardings.
absl::Status CheckSpecs(ClientState* client, const TensorFile& file, const LoadPlan& plan,
                        const std::vector<LoadRule>& rules, const std::stop_token& stop) {
  const Deadline deadline = Deadline::After(client->CallTimeout({}));
  for (const PlannedTensor& planned : plan.tensors) {
    if (!planned.taken) continue;
    AGMM_ASSIGN_OR_RETURN(
        const auto request,
        client->RequestFor(planned.name, SpecOf(planned, rules[planned.rule]), deadline, stop));
    const absl::Status status = FromProto(request.spec()).status();
    if (!status.ok()) return Annotate(status, ContextOf(file, planned, " cannot be loaded"));
  }
  return absl::OkStatus();
}

// Loads the tensors that the plan takes.
Result<LoadedFile> LoadPlanned(Client* client, const TensorFile& file, const LoadPlan& plan,
                               const std::vector<LoadRule>& rules, const TransferOptions& options) {
  LoadedFile result;
  const int64_t total_bytes = plan.bytes();
  int64_t before = 0;
  for (const PlannedTensor& planned : plan.tensors) {
    if (!planned.taken) {
      result.skipped.push_back(planned.stored->name);
      continue;
    }
    const auto begin = std::chrono::steady_clock::now();
    const MatrixReader matrix = file.Reader(planned.layout);
    ConvertedReader source(matrix, planned.dtype);
    const Result<TensorInfo> put = client->Put(
        planned.name, SpecOf(planned, rules[planned.rule]),
        [&](int64_t offset_bytes, std::byte* into, int64_t size_bytes) {
          return ToPublic(source.Read(offset_bytes, size_bytes, reinterpret_cast<char*>(into)));
        },
        PartOf(options, before, total_bytes));
    if (!put.ok()) return LoadError(put.status(), file, planned, result.loaded);
    const std::chrono::duration<double> took = std::chrono::steady_clock::now() - begin;
    result.loaded.push_back({planned.stored->name, *put, planned.bytes(), took.count()});
    before += planned.bytes();
  }
  for (const int unused : plan.unused_rules)
    result.unused_patterns.push_back(rules[unused].pattern);
  return result;
}

// Appends the contents of the tensor.
Result<TensorInfo> SaveOne(Client* client, const std::string& handle, TensorFileWriter* file,
                           const TransferOptions& options) {
  return client->Get(
      handle,
      [file](int64_t, const std::byte* from, int64_t size_bytes) {
        return ToPublic(
            file->Append({reinterpret_cast<const char*>(from), static_cast<size_t>(size_bytes)}));
      },
      options);
}

}  // namespace

Result<LoadedFile> Client::Load(const std::string& path, const std::vector<LoadRule>& rules,
                                const LoadOptions& options) {
  const auto file = TensorFile::Open(path, options.transfer.stop);
  if (!file.ok()) return ToPublic(file.status());
  const std::vector<FileRule> file_rules = FileRulesOf(rules);
  const LoadPlan plan = PlanLoad(**file, file_rules);
  const absl::Status checked = CheckPlan(**file, file_rules, plan, options.strict);
  if (!checked.ok()) return ToPublic(checked);
  const Status specs = state_->Call([&](Connection*) {
    return CheckSpecs(state_.get(), **file, plan, rules, options.transfer.stop);
  });
  if (!specs.ok()) return specs;
  return LoadPlanned(this, **file, plan, rules, options.transfer);
}

Result<std::vector<TensorInfo>> Client::Save(const std::string& path,
                                             const std::vector<std::string>& names,
                                             const SaveOptions& options) {
  const auto failed = [&](const std::string& name, const Status& status) {
    return WithContext(status,
                       absl::StrCat("tensor ", QuotedName(name), " was not saved to ", path));
  };
  std::vector<TensorToSave> tensors;
  std::map<std::string, std::string> handles;  // by name
  int64_t total_bytes = 0, before = 0;
  for (const std::string& name : names) {
    const Result<TensorInfo> found = state_->Call([&](Connection*) {
      return state_->Find(name, Deadline::After(state_->CallTimeout({})), options.transfer.stop);
    });
    if (!found.ok()) return failed(name, found.status());
    const TensorSpec& spec = found->spec;
    handles[found->name] = found->handle;
    tensors.push_back({found->name, spec.rows, spec.cols, DTypeOf(spec.type)});
    total_bytes += spec.rows * spec.cols * BytesOf(spec.type);
  }
  const auto file = TensorFileWriter::Create(path, std::move(tensors), options.metadata);
  if (!file.ok()) return ToPublic(file.status());
  std::vector<TensorInfo> saved;
  for (const TensorToSave& tensor : (*file)->tensors()) {
    const Result<TensorInfo> got = SaveOne(this, handles[tensor.name], file->get(),
                                           PartOf(options.transfer, before, total_bytes));
    if (!got.ok()) return failed(tensor.name, got.status());
    saved.push_back(*got);
    before += tensor.rows * tensor.cols * SizeOf(tensor.dtype);
  }
  if (const absl::Status put = (*file)->Commit(); !put.ok()) return ToPublic(put);
  return saved;
}

}  // namespace agmm
