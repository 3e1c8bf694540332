// agmmctl advise: ranks the shardings of products on a machine, without a daemon.

#include <CLI/App.hpp>
#include <memory>
#include <string>
#include <utility>

#include "absl/strings/str_format.h"
#include "client/ctl/advice_report.h"
#include "client/ctl/advice_texts.h"
#include "client/ctl/machine_flags.h"
#include "client/ctl/terminal_line.h"
#include "client/ctl/verbs.h"
#include "kernels/base/status.h"

namespace agmm {
namespace {

struct AdviseFlags {
  AdviceTexts texts = {.specs = {"A[M, K] * B[K, N] -> C[M, N]"}};
  ProblemFlags of;  // mesh, dtype and nodes
  MachineFlags machine;
  int top = 10;
};

absl::Status RunAdvise(const AdviseFlags& flags, const Options& options) {
  AGMM_ASSIGN_OR_RETURN(const Mesh mesh, ParseMesh(flags.of.mesh));
  AGMM_ASSIGN_OR_RETURN(const DType dtype, ParseDType(flags.of.dtype));
  AGMM_ASSIGN_OR_RETURN(AdviceRequest request, ParseAdviceRequest(flags.texts, mesh, dtype));
  request.top = flags.top;
  AGMM_ASSIGN_OR_RETURN(Machine machine, MachineOf(flags.machine));
  AGMM_ASSIGN_OR_RETURN(const Platform platform,
                        PlatformOf(flags.machine, flags.of, mesh, std::move(machine)));
  if (flags.texts.memory.empty() && platform.machine.heap_bytes > 0)
    request.memory_bytes = platform.machine.heap_bytes;
  AdviceAnswer answer;
  {
    const TerminalLine line([](absl::Duration elapsed) -> std::string {
      if (elapsed < absl::Seconds(1)) return "";
      return absl::StrFormat("comparing shardings  %s",
                             absl::FormatDuration(absl::Floor(elapsed, absl::Seconds(1))));
    });
    AGMM_ASSIGN_OR_RETURN(answer, Advise(request, platform));
  }
  if (answer.ranked.empty()) return NothingFits(request, answer);
  PrintResult(options, AdviceJson(request, platform, answer),
              AdviceText(request, platform, answer));
  return absl::OkStatus();
}

}  // namespace

void AddAdvise(CLI::App* app, Command* command) {
  auto flags = std::make_shared<AdviseFlags>();
  CLI::App* verb =
      app->add_subcommand("advise", "Rank shardings of products on a machine, without a daemon");
  verb->add_option("--shape", flags->texts.shape,
                   "Sizes of the dimensions, such as M=8192,N=4096,K=4096")
      ->required();
  verb->add_option("--mesh", flags->of.mesh, "Axes and their sizes, such as x=8 or dp=2,tp=4")
      ->required();
  verb->add_option("--spec,--product", flags->texts.specs,
                   "The product. An operand with a subscript keeps its sharding; the others are "
                   "chosen. For products in a row, give the flag once for each, or put semicolons "
                   "between them (default: A[M, K] * B[K, N] -> C[M, N])")
      ->allow_extra_args(false);
  verb->add_option("--output", flags->texts.output,
                   "The last result with the sharding that it has to have: 'C[M, N]' for a copy on "
                   "every rank (default: chosen)");
  verb->add_option("--memory", flags->texts.memory,
                   "The most memory of a rank, such as 300MB or 16GiB (default: that of the "
                   "machine, if it is known)");
  verb->add_option("--dtype", flags->of.dtype,
                   "Type of the operands to which --spec gives none: f32, bf16 or f16")
      ->capture_default_str();
  verb->add_option("--nodes", flags->of.nodes, "Number of nodes that the ranks are on, in order");
  verb->add_option("--devices-per-node", flags->of.devices_per_node,
                   "Number of ranks of a node (default: that of the machine)");
  AddMachineFlags(verb, &flags->machine);
  verb->add_option("--top", flags->top, "The most rows of the table")
      ->check(CLI::Range(1, 1000))
      ->capture_default_str();
  verb->footer(
      "Times are of one epoch. Inputs are where they are at its beginning: a sharding costs what "
      "has to move for the product, and nothing for placing its inputs. The memory of a rank is "
      "its shards of all operands and the workspace of the plan. To reproduce question 7 of the "
      "scaling book: --mesh x=2,y=2 --preset tpu-v5e --memory 300MB --shape B=128,D=8192,F=32768 "
      "--spec 'x[B, D] * V[D, F] -> H[B, F]; H * W[F, D] -> Y[B, D]'");
  OnVerb(verb, command, flags, RunAdvise);
}

}  // namespace agmm
