"""Counts what agmm's ring kernel, JAX's collective matmul and a stage of CUTLASS's distributed product run, on the model.

    compare.py --build FOLDER --agmm BUILD [--jax FOLDER] [--cutlass FOLDER] [--rows 1024 --cols 4096 --depth 4096]

Prints a table for one step of a ring: a GPU multiplies ROWS x DEPTH of A by DEPTH x COLS of B, waits for these rows and
sends them on. The step is the difference between rings of 3 and of 2 GPUs, for each GPU, so that what a launch does once
is left out. CUTLASS launches a kernel for each step, and copies A outside of it. Tiles are 128 x 256, stages 64 of K.

Failed polls depend on the order in which the model runs warps, so they are counted apart, and left out of the
instructions. The options are those of the scripts beside it; kernels/cuda/sm90/NOTES.md has a table.
"""

import argparse
import os
import re
import subprocess
import sys

import build
import cutlass

TILE_ROWS, TILE_COLS, SMS, SEND_COLUMNS, CLUSTER = 128, 256, 132, 4, 2
JAX_CONFIG = "128,128,64,4,8,N"  # one that JAX's own example tries: two warpgroups side by side
# The tile and the cluster of CUTLASS's example 65. Its sums are f16, so one warpgroup can multiply a tile there; sums of
# f32 take the two of the cooperative schedule.
cutlass.KERNELS["stage"] = cutlass.Kernel(
    (cutlass.HALF,) * 4, f"_{TILE_ROWS}, _{TILE_COLS}, _64", "_1, _2, _1", (), gather_gpus=4)

RUNS, TAKEN, LANES, REPEATS = range(4)
FLAG_LOADS = r"ld\.(?:acquire|relaxed)\.sys|ld\.acquire\.cluster|ld\.global\.cv"


class Counts:
    """What a run has done, by opcode: runs, runs that the guard let through, lanes of these, and failed polls."""

    # The instructions of a failed poll of an mbarrier and of a flag, and what follows the last poll of a flag.
    mbarrier_poll, flag_poll, after_flags = 3, 3, (r"fence\.acquire\.sys", r"ld\.global\.cv")

    def __init__(self, report):
        self.loaded, self.stored = map(int, re.search(r"^bytes: (\d+) (\d+)", report, re.M).groups())
        self.opcodes = {opcode: list(map(int, numbers.split()))
                        for opcode, numbers in re.findall(r"^count: (\S+) (.*)", report, re.M)}

    def step_after(self, fewer, gpus):
        """What a step adds for each GPU: these counts are those of a ring of `gpus`, `fewer` those of one less."""
        step = object.__new__(type(self))
        difference = lambda more, less: more / gpus - less / (gpus - 1)
        step.loaded, step.stored = difference(self.loaded, fewer.loaded), difference(self.stored, fewer.stored)
        zeros = [0] * 4
        step.opcodes = {opcode: list(map(difference, self.opcodes.get(opcode, zeros), fewer.opcodes.get(opcode, zeros)))
                        for opcode in self.opcodes | fewer.opcodes}
        return step

    def sum(self, pattern, kind=TAKEN):
        return sum(numbers[kind] for opcode, numbers in self.opcodes.items()
                   if re.match(rf"(?:{pattern})(?:\.|$)", opcode))

    def instructions(self):
        """Without failed polls of mbarriers and of flags."""
        failed = self.sum(r"mbarrier\.try_wait", REPEATS)
        flags = self.sum(FLAG_LOADS) - self.flag_waits()
        return self.sum(".*", RUNS) - self.mbarrier_poll * failed - self.flag_poll * flags

    def flag_waits(self):
        """Waits for flags that other GPUs or copies set: the least number of loads of flags."""
        return sum(map(self.sum, self.after_flags))


class CountsOfAgmm(Counts):
    mbarrier_poll, flag_poll, after_flags = 2, 10, (r"fence\.proxy\.async\.global",)


ROWS = [
    ("bytes that TMA loads", lambda counts: counts.loaded),
    ("bytes that TMA stores, C included", lambda counts: counts.stored),
    ("TMA loads", lambda counts: counts.sum(r"cp\.async\.bulk\.tensor\.\dd\.shared::\w+\.global", LANES)),
    ("TMA stores", lambda counts: counts.sum(r"cp\.async\.bulk\.tensor\.\dd\.global\.shared::cta")),
    ("commits of bulk groups", lambda counts: counts.sum(r"cp\.async\.bulk\.commit_group")),
    ("waits for reads of bulk groups", lambda counts: counts.sum(r"cp\.async\.bulk\.wait_group\.read")),
    ("waits for bulk groups", lambda counts: counts.sum(r"cp\.async\.bulk\.wait_group(?!\.read)")),
    ("wgmma", lambda counts: counts.sum(r"wgmma\.mma_async")),
    ("wgmma.fence", lambda counts: counts.sum(r"wgmma\.fence")),
    ("mbarrier arrivals, of threads", lambda counts: counts.sum(r"mbarrier\.arrive", LANES)),
    ("mbarrier arrivals, of warps", lambda counts: counts.sum(r"mbarrier\.arrive")),
    ("mbarrier waits, of warps", lambda counts: counts.sum(r"mbarrier\.try_wait") - counts.sum(
        r"mbarrier\.try_wait", REPEATS)),
    ("mbarrier waits that failed", lambda counts: counts.sum(r"mbarrier\.try_wait", REPEATS)),
    ("mbarrier inits", lambda counts: counts.sum(r"mbarrier\.init", LANES)),
    ("named barriers, of warps", lambda counts: counts.sum(r"(?:bar|barrier(?:\.cta)?)\.(?:sync|arrive)")),
    ("barriers of a warp", lambda counts: counts.sum(r"bar\.warp")),
    ("cluster barriers, of warps", lambda counts: counts.sum(r"barrier\.cluster")),
    ("fence.proxy.async, all memory", lambda counts: counts.sum(r"fence\.proxy\.async(?!\.)")),
    ("fence.proxy.async.shared", lambda counts: counts.sum(r"fence\.proxy\.async\.shared::\w+")),
    ("fence.proxy.async.global", lambda counts: counts.sum(r"fence\.proxy\.async\.global")),
    ("fence.mbarrier_init", lambda counts: counts.sum(r"fence\.mbarrier_init")),
    ("fence.acquire, .release, .acq_rel", lambda counts: counts.sum(r"fence\.(?:acq\w*|release)")),
    ("releases to the system", lambda counts: counts.sum(r"(?:st|red)\.release\.sys")),
    ("atomics of the GPU", lambda counts: counts.sum(r"(?:atom|red)\.\w+\.gpu")),
    ("waits for flags, of warps", lambda counts: counts.flag_waits()),
    ("stores of C from registers", lambda counts: counts.sum(r"st\.global")),
    ("stmatrix, st.shared", lambda counts: counts.sum(r"stmatrix") + counts.sum(r"st\.shared")),
    ("griddepcontrol", lambda counts: counts.sum(r"griddepcontrol")),
    ("instructions of warps", lambda counts: counts.instructions()),
]


def tiles_of(arguments):
    return arguments.rows // TILE_ROWS * (arguments.cols // TILE_COLS)


def ctas_of(arguments):
    """A tile of each step for each CTA, if there are SMs for that: on the model, CTAs without a tile would only poll."""
    return min(tiles_of(arguments), SMS)


def report_of(command, **settings):
    """Runs a program on the model. Products must be right."""
    environment = dict(os.environ, PTX_COUNTS="1", PTX_RACES="0", PTX_LIMIT="0", PTX_MODE="eager",
                       PTX_RESIDENT=str(SMS), **settings)
    run = subprocess.run(["nice", "-n", "5", *command], env=environment, capture_output=True, text=True, check=False)
    text = run.stdout + run.stderr
    if run.returncode != 0:
        sys.exit(f"{' '.join(command)} ends with status {run.returncode}: {text[-2000:]}")
    return text


def step_of_agmm(arguments):
    kernel = f"agmm_ring_f16_f16_{TILE_COLS}_{CLUSTER}"
    ptx = os.path.join(arguments.build, kernel + ".ptx")
    with open(ptx, "w", encoding="utf-8") as file:
        file.write(build.kernel_in_image(os.path.join(arguments.agmm, "kernels/cuda/sm90/product.fatbin"), kernel))
    shape = [arguments.rows, arguments.cols, arguments.depth, TILE_COLS, CLUSTER, ctas_of(arguments), SEND_COLUMNS]
    ring = lambda gpus: CountsOfAgmm(report_of([os.path.join(arguments.agmm, "bin/sm90_run"), "ring",
                                                *map(str, [gpus, *shape])], PTX_FILE=ptx))
    return ring(3).step_after(ring(2), 3)


def step_of_jax(arguments):
    python = build.environment(arguments.jax or os.path.join(arguments.build, "jax"), jax_packages())
    build.fake_driver(arguments.build)
    ring = lambda gpus: Counts(report_of([python, os.path.abspath(__file__), *sys.argv[1:], "--jax-ring", str(gpus)]))
    return ring(3).step_after(ring(2), 3)


def jax_packages():
    import jax_kernels
    return jax_kernels.PACKAGES


def run_jax(arguments):
    """Runs JAX's ring once, in the environment of JAX, and prints the report."""
    import jax_kernels
    from jax_model import Order
    jax_kernels.PROBLEMS["compared"] = jax_kernels.Problem(
        "ring", arguments.jax_ring, arguments.rows, arguments.cols, arguments.depth, ctas_of(arguments),
        config=JAX_CONFIG)
    wrong, report = jax_kernels.Bench("compared", arguments.build).run(Order(1, "eager"))
    print(report.text)
    sys.exit(bool(wrong or report.stop))


def step_of_cutlass(arguments):
    program, ptx = cutlass.build_kernel("stage", arguments.build, arguments.cutlass)
    shape = [arguments.rows, arguments.cols, arguments.depth, ctas_of(arguments), 0]
    return Counts(report_of([program, *map(str, shape)], PTX_FILE=ptx))


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--build", required=True, help="for objects, PTX and programs")
    parser.add_argument("--agmm", help="a build folder of agmm, with bin/sm90_run", required=True)
    parser.add_argument("--jax", help="the virtual environment of jax_kernels.py")
    parser.add_argument("--cutlass", help="that of cutlass.py")
    parser.add_argument("--rows", type=int, default=1024)
    parser.add_argument("--cols", type=int, default=4096)
    parser.add_argument("--depth", type=int, default=4096)
    parser.add_argument("--opcodes", action="store_true", help="also print what was run by opcode")
    parser.add_argument("--jax-ring", type=int, help=argparse.SUPPRESS)
    parser.add_argument("kernels", nargs="*", metavar="KERNEL", help="agmm, jax, cutlass")
    arguments = parser.parse_args()
    os.makedirs(arguments.build, exist_ok=True)
    if arguments.jax_ring:
        run_jax(arguments)
    runs = {"agmm": step_of_agmm, "jax": step_of_jax, "cutlass": step_of_cutlass}
    steps = {name: runs[name](arguments) for name in arguments.kernels or runs}
    tiles = tiles_of(arguments)
    print(f"{'':36s}" + "".join(f"{name:>14s}{'a tile':>11s}" for name in steps))
    for label, value in ROWS:
        values = [value(step) for step in steps.values()]
        if any(values):
            print(f"{label:36s}" + "".join(f"{number:14,.0f}{number / tiles:11,.1f}" for number in values))
    for name, step in steps.items() if arguments.opcodes else ():
        print(name)
        for opcode, numbers in sorted(step.opcodes.items(), key=lambda item: -item[1][RUNS]):
            print(f"  {opcode:90s}" + "".join(f"{number:14,.1f}" for number in numbers))


if __name__ == "__main__":
    main()
