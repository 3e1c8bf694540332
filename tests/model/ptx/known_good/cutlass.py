"""Compiles seven kernels of CUTLASS and runs them on the PTX model, without a GPU.

    cutlass.py --build FOLDER [--environment FOLDER] [--seeds N] [KERNEL...]

CUTLASS's own host code makes parameters and tensor maps, and launches through the fake runtime (fake_cudart.cc). nvcc
needs 3 GB and up to a minute for each kernel; kernels that are compiled stay in the build folder. The script fails if a
product is wrong, if there is a finding, and if a run stops.
"""

import argparse
import collections
import dataclasses
import glob
import os
import re
import subprocess
import sys
import time

import build

PACKAGES = ["nvidia-cutlass==4.2.0.0"]
MODES = ("random", "late", "eager")
HALF, BF16, FP8 = "cutlass::half_t", "cutlass::bfloat16_t", "cutlass::float_e4m3_t"
COOPERATIVE = "cutlass::gemm::KernelTmaWarpSpecializedCooperative"
STREAM_K = "cutlass::gemm::StreamKScheduler"


@dataclasses.dataclass(frozen=True)
class Kernel:
    """A kernel, and problems for it: M N K SMS BETA [SPLITS], and the CTAs that are resident."""
    elements: tuple          # of A, B, C and D
    tile: str
    cluster: str
    problems: tuple
    schedule: str = COOPERATIVE
    epilogue: str = "cutlass::epilogue::TmaWarpSpecializedCooperative"
    layouts: tuple = ("RowMajor", "ColumnMajor")
    scheduler: str = "cutlass::gemm::PersistentScheduler"
    resident: int = 4
    split_k: bool = False
    gather_gpus: int = 0

    def definitions(self):
        names = {f"ELEMENT_{matrix}": element for matrix, element in zip("ABCD", self.elements)}
        names |= {"LAYOUT_A": self.layouts[0], "LAYOUT_B": self.layouts[1], "TILE": self.tile, "CLUSTER": self.cluster,
                  "SCHEDULE": self.schedule, "EPILOGUE": self.epilogue, "SCHEDULER": self.scheduler,
                  "SPLIT_K": int(self.split_k), "GATHER_GPUS": self.gather_gpus}
        if self.gather_gpus:
            names["CUTLASS_ENABLE_GDC_FOR_SM90"] = 1
        return "".join(f"#define {name} {value}\n" for name, value in names.items())


KERNELS = {
    "pingpong": Kernel(
        (HALF, HALF, HALF, HALF), "_128, _128, _64", "_1, _1, _1", ("200 328 200 2 0.5", "256 256 192 4 0"),
        schedule="cutlass::gemm::KernelTmaWarpSpecializedPingpong", epilogue="cutlass::epilogue::TmaWarpSpecialized"),
    "cooperative_2x1": Kernel(
        (BF16, BF16, BF16, BF16), "_128, _256, _64", "_2, _1, _1",
        ("400 520 328 4 2", "256 512 328 4 0", "256 512 2048 4 0")),
    "fp8_1x2": Kernel(
        (FP8, FP8, HALF, HALF), "_128, _128, _128", "_1, _2, _1", ("272 400 720 4 2", "272 400 208 4 2"),
        schedule="cutlass::gemm::KernelTmaWarpSpecializedCooperativeFP8FastAccum"),
    # Neither persistent, nor with an epilogue through shared memory.
    "mn_major": Kernel(
        (BF16, BF16, "float", "float"), "_64, _128, _64", "_1, _1, _1", ("200 136 200 4 1", "200 136 72 4 2"),
        schedule="cutlass::gemm::KernelTmaWarpSpecialized", epilogue="cutlass::epilogue::NoSmemWarpSpecialized",
        layouts=("ColumnMajor", "RowMajor"), scheduler="void"),
    "stream_k_2x2": Kernel(
        (HALF, HALF, HALF, HALF), "_128, _128, _64", "_2, _2, _1", ("256 384 1032 4 1", "200 328 1032 4 0"),
        scheduler=STREAM_K),
    # The epilogue cannot put D where C was in shared memory.
    "f32_output": Kernel(
        (HALF, HALF, HALF, "float"), "_128, _128, _64", "_1, _1, _1", ("272 520 328 2 2", "272 520 328 2 0")),
    # CTAs add up their parts of a tile in global memory.
    "split_k": Kernel(
        (HALF, HALF, HALF, HALF), "_128, _128, _64", "_2, _1, _1",
        ("384 256 1024 4 1 2", "256 128 1792 8 0 4", "384 256 1024 16 1 4"),
        scheduler=STREAM_K, resident=16, split_k=True),
}


def cutlass_source(build_folder, environment):
    """Returns the folder of CUTLASS's headers; installs the wheel if needed."""
    environment = environment or os.path.join(build_folder, "cutlass")
    build.environment(environment, PACKAGES)
    (source,) = glob.glob(environment + "/lib/python*/site-packages/cutlass_library/source")
    return source


def build_kernel(name, build_folder, environment):
    """Returns the host program of a kernel, and its PTX."""
    kernel, cuda = os.path.join(build_folder, name + ".cu"), os.path.join(build.FOLDER, "cutlass_gemm.cu")
    text = KERNELS[name].definitions() + f'#include "{cuda}"\n'
    if not os.path.exists(kernel) or open(kernel, encoding="utf-8").read() != text:
        with open(kernel, "w", encoding="utf-8") as file:
            file.write(text)
    ptx, host = (os.path.join(build_folder, name + ending) for ending in (".ptx", ".host.o"))
    for target, options in ((ptx, ["-ptx", "-O3", "-lineinfo", "-arch=sm_90a"]),
                            (host, ["-c", "-O1", "-gencode", "arch=compute_90a,code=compute_90a"])):
        if build.newer(target, [kernel, cuda]):
            continue
        source = cutlass_source(build_folder, environment)
        print("compiles", os.path.basename(target), flush=True)
        build.run([os.path.join(build.CUDA, "bin", "nvcc"), "-std=c++17", "-DNDEBUG", "--expt-relaxed-constexpr",
                   f"-I{source}/include", f"-I{source}/tools/util/include", *options, "-o", target, kernel])
    runtime = build.compile_object(build_folder, os.path.join(build.FOLDER, "fake_cudart.cc"))
    return build.link(build_folder, name, [host, runtime]), ptx


def command(name, program, problems):
    """The command that runs problems until one fails."""
    return ["env", f"PTX_RESIDENT={KERNELS[name].resident}", "sh", "-c",
            " && ".join(f"'{program}' {problem}" for problem in problems)]


def sweep(name, program, ptx, problem, seeds):
    """Runs a problem in all modes; prints a line. Returns the number of runs that are not clean."""
    begin, counts, said = time.time(), collections.Counter(), collections.Counter()
    for mode in MODES:
        for seed in range(1, seeds + 1):
            environment = dict(os.environ, PTX_FILE=ptx, PTX_MODE=mode, PTX_SEED=str(seed))
            run = subprocess.run(["nice", "-n", "5", *command(name, program, [problem])], env=environment,
                                 capture_output=True, text=True, check=False)
            text = run.stdout + run.stderr
            findings = re.findall(r"^finding.*", text, re.M)
            counts["runs"] += 1
            counts["right"] += run.returncode in (0, 2)
            counts["findings"] += bool(findings)
            counts["bad"] += run.returncode != 0
            counts["instructions"] = counts["instructions"] or sum(map(int, re.findall(r"instructions: (\d+)", text)))
            if run.returncode != 0:
                said[f"{mode} {seed}: status {run.returncode}: {(findings or [text])[0][:400]}"] += 1
    print(f"{name:16s} {problem:22s} {counts['runs']:5d} {counts['right']:5d} {counts['findings']:8d} "
          f"{counts['instructions']:12d} {time.time() - begin:6.1f}")
    for line in list(said)[:3]:
        print("    " + line)
    sys.stdout.flush()
    return counts["bad"]


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--build", required=True, help="for objects, PTX and programs")
    parser.add_argument("--environment",
                        help="a virtual environment with nvidia-cutlass; made if absent; default: in the build folder")
    parser.add_argument("--seeds", type=int, default=4)
    parser.add_argument("kernels", nargs="*", metavar="KERNEL", help=", ".join(KERNELS))
    arguments = parser.parse_args()
    os.makedirs(arguments.build, exist_ok=True)
    os.makedirs(arguments.build, exist_ok=True)
    built = {name: build_kernel(name, arguments.build, arguments.environment) for name in arguments.kernels or KERNELS}
    print(f"{'kernel':16s} {'problem':22s} {'runs':>5s} {'right':>5s} {'findings':>8s} {'instructions':>12s} {'s':>6s}")
    bad = sum(sweep(name, program, ptx, problem, arguments.seeds)
              for name, (program, ptx) in built.items() for problem in KERNELS[name].problems)
    sys.exit(bad != 0)


if __name__ == "__main__":
    main()
