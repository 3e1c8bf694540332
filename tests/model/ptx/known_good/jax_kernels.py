"""Runs kernels of JAX's Mosaic GPU on the PTX model: products and collectives of 1 to 4 GPUs, without a GPU.

    jax_kernels.py --build FOLDER [--environment FOLDER] [--seeds N] [PROBLEM...]
    jax_kernels.py --build FOLDER --run PROBLEM     one run, for mutants.py; see run_settings.h

Mosaic's own host code makes tensor maps and parameters: its launches go to the fake driver (fake_cuda.cc). Every element
of results and of sent copies is compared. The script fails if a kernel is wrong or has a finding, and if a defect of JAX
that is known (jax_fix.py) does not show, or shows in the repaired kernel.

JAX relies on Policy::store_completion_fences. Findings of the strictest policy are printed, too.
"""

import argparse
import collections
import ctypes
import dataclasses
import glob
import multiprocessing
import os
import sys
import tempfile
import time

import build

PACKAGES = ["jax==0.12.0.1", "jax-cuda13-plugin==0.12.0.1", "absl-py"]
HALF = "float16"


@dataclasses.dataclass(frozen=True)
class Problem:
    """A kernel, and the part of the data that each GPU has."""
    kind: str
    gpus: int
    rows: int
    cols: int
    depth: int
    ctas: int                # of each GPU
    fix: object = None       # of the PTX
    defect: str = ""         # that must show
    strictest: bool = True   # also without a finding under the strictest policy
    config: str = "64,64,64,3,1,M"  # of products: tile_m, tile_n, tile_k, stages, grid_tile_width, wg_dimension

    @property
    def lowered_as(self):
        config = "" if self.config == Problem.config else "_" + self.config.replace(",", "_")
        return f"{self.kind}_{self.gpus}_{self.rows}_{self.cols}_{self.depth}_{self.ctas}{config}"


RING4 = Problem("ring", 4, 128, 128, 256, 2, defect="A", strictest=False)
RING4_IDLE = Problem("ring", 4, 128, 256, 256, 6, defect="A", strictest=False)  # 4 tiles: 2 CTAs have none
RING2_TILES = Problem("ring", 2, 256, 256, 256, 4, defect="B", strictest=False)  # 2 tiles a CTA


def fixed(problem, fix):
    return dataclasses.replace(problem, fix=fix, defect="")


def count_each_step(text, problem):
    import jax_fix
    return jax_fix.count_each_step(text, problem.gpus, problem.ctas)


def meet_between_tiles(text, problem):
    del problem
    import jax_fix
    return jax_fix.meet_between_tiles(text)


PROBLEMS = {
    "matmul": Problem("matmul", 1, 256, 256, 256, 4),
    "ring2": Problem("ring", 2, 256, 256, 256, 8, strictest=False),
    "ring2_tiles": RING2_TILES,
    "ring2_tiles_fixed": fixed(RING2_TILES, meet_between_tiles),
    "ring4": RING4,
    "ring4_fixed": fixed(RING4, count_each_step),
    "ring4_idle": RING4_IDLE,
    "ring4_idle_fixed": fixed(RING4_IDLE, count_each_step),
    "all_gather": Problem("all_gather", 4, 64, 256, 0, 2),
    "reduce_scatter": Problem("reduce_scatter", 4, 64, 256, 0, 2),
}


class Buffers:
    """The arrays of a problem on all GPUs, in the order of the kernel's operands."""

    def __init__(self, model, problem):
        import numpy
        self.model, self.problem = model, problem
        gpus, rows, cols, depth = problem.gpus, problem.rows, problem.cols, problem.depth
        random = numpy.random.default_rng(1)
        integers = lambda *shape: random.integers(-2, 3, shape).astype(HALF)
        self.ranks, self.results = [], []  # results: array and wanted values
        if problem.kind in ("matmul", "ring"):
            a, b = integers(rows * gpus, depth), integers(depth, cols * gpus)
            product = (a.astype("float32") @ b.astype("float32")).astype(HALF)
        else:
            parts = [integers(rows, cols) for _ in range(gpus)]
            product = numpy.concatenate(parts) if problem.kind == "all_gather" else sum(
                part.astype("float32") for part in parts).astype(HALF)
        for gpu in range(gpus):
            down, across = slice(gpu * rows, (gpu + 1) * rows), slice(gpu * cols, (gpu + 1) * cols)
            if problem.kind == "matmul":
                self.ranks.append([self.given(gpu, a), self.given(gpu, b), self.result(gpu, product)])
            elif problem.kind == "ring":
                ranks = [self.given(gpu, a[down]), self.given(gpu, b[:, across]), self.semaphores(gpu),
                         self.result(gpu, product[:, across])]
                after = [(gpu + 1 + step) % gpus * rows for step in range(gpus - 1)]
                sent = self.result(gpu, numpy.stack([a[first:first + rows] for first in after]))
                self.ranks.append(ranks + [sent, ranks[2]])
            else:
                semaphores = self.semaphores(gpu)
                share = rows // gpus
                wanted = product if problem.kind == "all_gather" else product[gpu * share:(gpu + 1) * share]
                self.ranks.append([self.given(gpu, parts[gpu]), semaphores, self.result(gpu, wanted), semaphores])
        self.add_metadata()

    def given(self, gpu, values):
        """An operand that the host writes once."""
        array = self.model.array(gpu, values.shape, values.dtype)
        array[...] = values
        self.model.set_written(array)
        return array

    def semaphores(self, gpu):
        array = self.model.array(gpu, (64,), "int32")
        self.model.set_written(array)
        return array

    def result(self, gpu, wanted):
        """Memory that the kernels must write. For the model, the host has not written it."""
        array = self.model.array(gpu, wanted.shape, wanted.dtype)
        self.results.append((array, wanted))
        return array

    def add_metadata(self):
        """Tables for the kernels: the number of the GPU, the addresses of all operands on all GPUs, those of multicasts."""
        gpus, operands = self.problem.gpus, len(self.ranks[0])
        multicast = self.problem.kind in ("all_gather", "reduce_scatter")
        teams = [self.model.multicast([rank[i] for rank in self.ranks]) if multicast else 0 for i in range(operands)]
        self.metadata = []
        for gpu in range(gpus):
            array = self.model.array(gpu, (4 + (gpus + 1) * operands,), "int64")
            array[0] = gpu
            array[4:] = [rank[i].ctypes.data for i in range(operands) for rank in self.ranks] + teams
            self.model.set_written(array)
            self.metadata.append(array)

    def reset(self):
        for array, _ in self.results:
            array[...] = float("nan")
        for rank in self.ranks:
            if self.problem.kind != "matmul":
                rank[1 if self.problem.kind != "ring" else 2][...] = 0

    def count_wrong(self):
        return sum(int((array != wanted).sum()) for array, wanted in self.results)

    def arguments(self, gpu):
        """Pointers as XLA gives them to Mosaic's host code: operands, and metadata for the kernel and for the host."""
        arrays = self.ranks[gpu] + [self.metadata[gpu]] * 2
        return (ctypes.c_void_p * len(arrays))(*[array.ctypes.data for array in arrays])


def packages_folder():
    import jaxlib
    return os.path.dirname(os.path.dirname(jaxlib.__file__))


def compile_kernel(folder, name):
    """Compiles NAME.mlir with Mosaic and writes NAME.ptx. Returns a function that launches it with pointers to operands."""
    packages = packages_folder()
    with open(os.path.join(folder, name + ".mlir"), "rb") as file:
        module = file.read()
    with tempfile.TemporaryDirectory() as dump:
        os.environ.update(MOSAIC_GPU_CUDA_ROOT=build.CUDA, MOSAIC_GPU_DUMP_TO=dump, MOSAIC_GPU_DUMP_PTX="1",
                          MOSAIC_GPU_RUNTIME_LIB_PATH=f"{packages}/jax_cuda13_plugin/libmosaic_gpu_runtime.so")
        plugin = ctypes.CDLL(f"{packages}/jax_plugins/xla_cuda13/xla_cuda_plugin.so")
        plugin.MosaicGpuCompile.argtypes = [ctypes.c_char_p, ctypes.c_int]
        plugin.MosaicGpuCompile.restype = ctypes.POINTER(ctypes.c_void_p)
        compiled = plugin.MosaicGpuCompile(module, len(module))
        if not compiled:
            raise RuntimeError("Mosaic cannot compile " + name)
        (ptx,) = glob.glob(dump + "/*.ptx")
        with open(ptx, encoding="utf-8") as file:
            text = file.read()
    # The paths of the source files would differ from machine to machine.
    lines = [line for line in text.split("\n") if not line.startswith("\t.file")]
    with open(os.path.join(folder, name + ".ptx"), "w", encoding="utf-8") as file:
        file.write("\n".join(lines))
    function, launch, kernel = compiled[:3]
    host_code = ctypes.CFUNCTYPE(None, *[ctypes.c_void_p] * 4, ctypes.c_int)(launch)
    return lambda operands, gpu: host_code(kernel, function, None, ctypes.addressof(operands), gpu)


def record_launches(model, problem, folder, buffers):
    """Lowers and compiles the kernel, and lets Mosaic's host code launch it for each GPU."""
    name = problem.lowered_as
    mlir = os.path.join(folder, name + ".mlir")
    if not os.path.exists(mlir):
        build.run([sys.executable, os.path.join(build.FOLDER, "jax_lower.py"), problem.kind,
                   *map(str, (problem.gpus, problem.rows, problem.cols, problem.depth, problem.ctas)), problem.config,
                   mlir])
    launch = compile_kernel(folder, name)
    text = read_text(os.path.join(folder, name + ".ptx"))
    for gpu in range(problem.gpus):
        if not model.driver.PtxRecord(text.encode(), gpu):
            raise RuntimeError("the model refuses the PTX of " + name)
        launch(buffers.arguments(gpu), gpu)
    if model.driver.PtxCountLaunches() != problem.gpus:
        raise RuntimeError("Mosaic's host code did not launch " + name)
    model.driver.PtxSaveLaunches(os.path.join(folder, name + ".launches").encode())


def read_text(path):
    with open(path, encoding="utf-8") as file:
        return file.read()


class Bench:
    """A problem that is ready to run. One for each process."""

    def __init__(self, name, folder):
        import jax_model
        self.problem = PROBLEMS[name]
        self.model = jax_model.Model(os.path.join(folder, "libcuda.so.1"))
        self.buffers = Buffers(self.model, self.problem)
        stem = os.path.join(folder, self.problem.lowered_as)
        if not os.path.exists(stem + ".launches"):
            record_launches(self.model, self.problem, folder, self.buffers)
        elif not self.model.driver.PtxLoadLaunches((stem + ".launches").encode()):
            raise RuntimeError("cannot read " + stem + ".launches")
        text = read_text(stem + ".ptx")
        self.text = self.problem.fix(text, self.problem) if self.problem.fix else text
        with open(os.path.join(folder, name + ".ptx"), "w", encoding="utf-8") as file:
            file.write(self.text)

    def run(self, order, text=None):
        """Returns the number of wrong elements, and the report."""
        self.buffers.reset()
        report = self.model.run(text or self.text, order)
        return self.buffers.count_wrong(), report


def orders_of(problem, seeds):
    from jax_model import Order
    orders = [Order(seed, mode) for mode in ("random", "late", "eager") for seed in range(1, seeds + 1)]
    starved = [(gpu, cta) for gpu in range(min(problem.gpus, 2)) for cta in range(problem.ctas)]  # the GPUs are alike
    return orders + [Order(1, mode, cta) for cta in starved for mode in ("random", "late")]


def sweep(name, folder, seeds, results):
    """Runs a problem in all orders; puts a summary into the queue. Runs in a process of its own."""
    bench = Bench(name, folder)
    from jax_model import Order
    begin = time.time()
    counts, reasons = collections.Counter(), collections.Counter()
    for order in orders_of(bench.problem, seeds):
        wrong, report = bench.run(order)
        counts["runs"] += 1
        counts["right"] += wrong == 0 and not report.stop
        counts["findings"] += bool(report.findings)
        counts["stops"] += bool(report.stop)
        counts["instructions"] = counts["instructions"] or report.instructions  # of the first run
        if wrong or report.stop or report.findings:
            counts["bad"] += 1
            said = report.stop or (report.findings[0] if report.findings else "no finding")
            reasons[f"{order}: {wrong} wrong; {said}"] += 1
    counts["seconds"] = time.time() - begin
    strict = collections.Counter()
    for mode in ("random", "late", "eager"):
        _, report = bench.run(Order(1, mode, strictest=True))
        strict.update(report.findings)
    results.put((counts, reasons, strict))


def verdict(problem, counts, strict):
    """Returns what is wrong with the outcome, or an empty text."""
    if problem.defect and not counts["bad"]:
        return f"defect {problem.defect} does not show"
    if not problem.defect and counts["bad"]:
        return "wrong, or not clean"
    if problem.strictest and strict:
        return "not clean under the strictest policy"
    return ""


def run_all(names, folder, seeds):
    failures = 0
    print(f"{'problem':18s} {'runs':>5s} {'right':>5s} {'findings':>8s} {'stops':>5s} {'instructions':>12s} {'s':>5s}")
    for name in names:
        queue = multiprocessing.get_context("fork").Queue()
        process = multiprocessing.get_context("fork").Process(target=sweep, args=(name, folder, seeds, queue))
        process.start()
        while process.is_alive() and queue.empty():
            process.join(0.2)
        if queue.empty():
            print(f"{name:18s} ended with status {process.exitcode}")
            failures += 1
            continue
        counts, reasons, strict = queue.get()
        process.join()
        problem = PROBLEMS[name]
        failure = verdict(problem, counts, strict)
        failures += bool(failure)
        said = failure or (f"defect {problem.defect} shows" if problem.defect else "clean")
        print(f"{name:18s} {counts['runs']:5d} {counts['right']:5d} {counts['findings']:8d} {counts['stops']:5d} "
              f"{counts['instructions']:12d} {counts['seconds']:5.1f}  {said}")
        for reason in list(reasons)[:3]:
            print("    " + reason[:420].replace("\n", " "))
        for text in sorted(strict)[:4]:
            print("    strictest policy: " + text[:380])
        sys.stdout.flush()
    return failures


def run_once(name, folder):
    """A run for mutants.py. Returns its exit status."""
    from jax_model import Order
    wrong, report = Bench(name, folder).run(
        Order(int(os.environ.get("PTX_SEED", "1")), os.environ.get("PTX_MODE", "random"),
              tuple(map(int, (os.environ.get("PTX_STARVED") or "-1:-1").split(":")))),
        read_text(os.environ["PTX_FILE"]))
    print("stop: " + report.stop if report.stop else "\n".join("finding: " + text for text in report.findings))
    print("wrong elements:", wrong)
    return 3 if report.stop else 1 if wrong else 2 if report.findings else 0


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--build", required=True, help="for objects, libcuda.so.1 and PTX")
    parser.add_argument("--environment",
                        help="a virtual environment with JAX; made if absent; default: in the build folder")
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--run", choices=PROBLEMS)
    parser.add_argument("problems", nargs="*", metavar="PROBLEM", help=", ".join(PROBLEMS))
    arguments = parser.parse_args()
    os.makedirs(arguments.build, exist_ok=True)
    if arguments.run:
        sys.exit(run_once(arguments.run, arguments.build))
    python = build.environment(arguments.environment or os.path.join(arguments.build, "jax"), PACKAGES)
    if os.path.realpath(os.path.dirname(sys.executable)) != os.path.realpath(os.path.dirname(python)):
        os.execv(python, [python, *sys.argv])
    build.fake_driver(arguments.build)
    sys.exit(run_all(arguments.problems or list(PROBLEMS), arguments.build, arguments.seeds) != 0)


if __name__ == "__main__":
    main()
