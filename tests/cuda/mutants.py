"""Makes one mistake at a time in the host half of CUDA devices, and asks whether a test notices (mutant_list.py).

    mutants.py --build FOLDER [--jobs N] [NAME...]     the mutants whose names contain a NAME, by default all
    mutants.py --check                                 only whether each edit applies

FOLDER keeps a copy of the sources and its build, so a second call compiles only what has changed, and the test that found each
mutant, which then runs first. The tests run on the model of the driver. Takes about half a minute for each mutant on two
processors, most of it for the compiler.

The script fails if a mutant survives without a reason, if one with a reason does not, if an edit does not apply or does not
compile, and if a test fails without a mutant.
"""

import argparse
import concurrent.futures
import dataclasses
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time

from mutant_list import MUTANTS

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
PROGRAMS = ["conformance_test", "cuda_test", "cuda_order_test", "cuda_fault_test"]
NO_PEERS, ONE_CHANNEL = "gpus=8,memory=8GiB,arch=80,peers=none,order=random,seed=8", "gpus=1,memory=8GiB,arch=80,channels=1,order=lazy"
# With kernels for Hopper.
HOPPER, HOPPER_NO_PEERS = "gpus=4,memory=8GiB,calls=lock,order=random,seed=1", "gpus=4,memory=8GiB,peers=none,channels=1,order=eager"
# Tests that look for mutants of their own; they are quick.
RINGS_AND_MEMORY = "Held*:LaneMemory*:PinnedC*:*Epoch*:*Staging*:*HeapChunks*:GpuTest.L*:GpuTest.ATenant*"
LARGE = "*_r5_*:*_r8_*:*AtTheirDeadline*"
# Program, tests, and AGMM_MODEL.
GROUPS = [
    ("cuda_test", "*", ""),
    ("cuda_order_test", "*", ""),
    ("cuda_fault_test", RINGS_AND_MEMORY, ""),
    ("conformance_test", "*Queued*/cuda_model*:*DeviceTest*/cuda_model:*HeapTest*/cuda_model", ""),
    ("conformance_test", "*Kernels.*:-" + LARGE, HOPPER),
    ("conformance_test", "*Kernels.Use*:-*_peer_*:" + LARGE, HOPPER_NO_PEERS),
    ("conformance_test", "*Exact*/cuda_model*r4*:-*Shardings*", ""),
    ("conformance_test", "*Queued*/cuda_model*r4_n?_*:-*_peer_*", NO_PEERS),
    ("conformance_test", "*RandomSchedules*/cuda_model_?:*Shardings.AreExact/cuda_model_*", ""),
    ("conformance_test", "*OfShardings.*Inputs/cuda_model_*_w2_AMK_x*", ""),
    ("conformance_test", "*Exact*/cuda_model*r4_n1*:-*_peer_*:*Shardings*", NO_PEERS),
    ("conformance_test", "*Queued*/cuda_model*:*HeapTest*/cuda_model", ONE_CHANNEL),
    ("conformance_test", "All/Waits.*:-*/serial:*/ring:*/direct", ""),
    ("conformance_test", "All/Epochs.*/cuda_model*:Peer/Epochs.*/cuda_model*", ""),
    ("conformance_test", "*Failure*/cuda_model*:EpochQueue*", ""),
    ("cuda_fault_test", "*:-" + RINGS_AND_MEMORY, ""),
]
# Programs whose tests set up the model, so each test has its own process.
ALONE = ["cuda_fault_test"]
NO_TEST = "no test"  # has begun
# Limits of a test in a process of its own (as in CTest), and of a group of tests. A longer run counts as a failure. On a busy
# machine, the limit is this many times as long as the run took without a mutant.
SECONDS_ALONE, SECONDS, SLOWER = 20, 60, 5


@dataclasses.dataclass(frozen=True)
class Run:
    program: str
    tests: str
    model: str


@dataclasses.dataclass(frozen=True)
class Failure:
    run: Run  # of the first test that failed
    why: str

    def __str__(self):
        on = f" on {self.run.model}" if self.run.model else ""
        return f"{self.run.program} {self.run.tests}{on}: {self.why[:100]}"


class Tests:
    """The programs of a build, and the runs of their tests."""

    def __init__(self, build, jobs):
        self.bin, self.jobs = os.path.join(build, "bin"), jobs
        self.environment = {**os.environ, "UCX_MEM_EVENTS": "n", "UCX_MEM_MMAP_HOOK_MODE": "none"}
        self.runs, self.last, self.took = [], {}, {}
        for program, tests, model in GROUPS:
            for test in self.list(program, tests) if program in ALONE else [tests]:
                self.runs.append(Run(program, test, model))

    def list(self, program, tests):
        suite, found = "", []
        text = subprocess.run([os.path.join(self.bin, program), "--gtest_list_tests", "--gtest_filter=" + tests],
                              env=self.environment, check=True, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL,
                              encoding="utf-8").stdout
        for line in text.splitlines():
            name = line.split("#")[0].rstrip()
            if line.startswith("  "):
                found.append(suite + name.strip())
            elif name.endswith("."):
                suite = name
        return found

    def first_failure(self):
        """Runs all tests, several at once; returns the first one that fails, or None."""
        stop, failures = threading.Event(), []

        def run(one):
            said = None if stop.is_set() else self.failure(one, stop)
            if said and not stop.is_set():
                stop.set()
                failures.append(said)

        with concurrent.futures.ThreadPoolExecutor(self.jobs) as pool:
            list(pool.map(run, self.runs))
        if not failures and not self.took:
            self.took = dict(self.last)  # without a mutant
        return failures[0] if failures else None

    def failure_of(self, run):
        """As first_failure, of one run."""
        failure = self.failure(run, threading.Event())
        return failure if failure and failure.run.tests != NO_TEST else None

    def limit(self, run):
        seconds = SECONDS_ALONE if run.program in ALONE else SECONDS
        return max(seconds, SLOWER * self.took.get(run, 0)) if self.took else SLOWER * seconds

    def failure(self, run, stop):
        """Returns the Failure of a run, or None. Ends it once `stop` is set."""
        environment = {**self.environment, **({"AGMM_MODEL": run.model} if run.model else {})}
        begin, seconds = time.monotonic(), self.limit(run)
        with tempfile.TemporaryFile("w+", encoding="utf-8", errors="replace") as output:
            process = subprocess.Popen([os.path.join(self.bin, run.program), "--gtest_filter=" + run.tests,
                                        "--gtest_fail_fast"], stdin=subprocess.DEVNULL, stdout=output,
                                       stderr=subprocess.STDOUT, env=environment, start_new_session=True)
            while process.poll() is None and not stop.is_set() and time.monotonic() < begin + seconds:
                try:
                    process.wait(0.1)
                except subprocess.TimeoutExpired:
                    pass
            late = ""
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)
                process.wait()
                late = f"not over after {seconds:.0f} s"
            output.seek(0)
            text = output.read()
        if stop.is_set():
            return None
        if process.returncode == 0 and not re.search(r"PASSED  \] 0 tests", text):
            self.last[run] = time.monotonic() - begin
            return None
        failed = re.findall(r"^\[  FAILED  \] (\S+\.[^\s,]+)", text, re.M)
        begun = re.findall(r"^\[ RUN      \] (\S+)", text, re.M)
        test = failed[0] if failed else begun[-1] if begun else NO_TEST
        return Failure(Run(run.program, test, run.model), self.reason(process.returncode, late, text))

    @staticmethod
    def reason(code, late, text):
        finding = re.search(r"^model: (?!GPU)(.*)", text, re.M)
        if late:
            return late
        if finding:
            return finding.group(1)
        return f"signal {-code}" if code < 0 else "failed"


class Found:
    """The test that found each mutant, in a file of the build folder."""

    def __init__(self, path):
        self.path, self.runs = path, {}
        if os.path.exists(path):
            with open(path, encoding="utf-8") as file:
                self.runs = json.load(file)

    def run_of(self, mutant):
        return Run(*self.runs[mutant.name]) if mutant.name in self.runs else None

    def add(self, mutant, run):
        self.runs[mutant.name] = dataclasses.astuple(run)
        with open(self.path, "w", encoding="utf-8") as file:
            json.dump(self.runs, file, indent=1)


def copy_sources(folder):
    """Copies what has changed, so that the build compiles only this."""
    for top in sorted(os.listdir(ROOT)):
        if top.startswith((".", "build")) or folder.startswith(os.path.join(ROOT, top, "")):
            continue
        if os.path.isfile(os.path.join(ROOT, top)):
            copy_file(os.path.join(ROOT, top), folder)
        for path, _, names in os.walk(os.path.join(ROOT, top)):
            for name in names:
                copy_file(os.path.join(path, name), folder)


def copy_file(source, folder):
    target = os.path.join(folder, os.path.relpath(source, ROOT))
    os.makedirs(os.path.dirname(target), exist_ok=True)
    with open(source, "rb") as file:
        new = file.read()
    if os.path.exists(target):
        with open(target, "rb") as file:
            if file.read() == new:
                return
    shutil.copy(source, target)


def configure(source, build):
    os.makedirs(build, exist_ok=True)
    # A mutant changes one file, so the files of its library are compiled one by one.
    include = os.path.join(build, "one_by_one.cmake")
    with open(include, "w", encoding="utf-8") as file:
        file.write("cmake_language(DEFER CALL set_target_properties agmm_cuda PROPERTIES UNITY_BUILD OFF)\n")
    command = ["cmake", "-S", source, "-B", build, "-G", "Ninja", "-DCMAKE_BUILD_TYPE=Release",
               "-DCMAKE_CXX_FLAGS_RELEASE=-O1 -DNDEBUG", "-DAGMM_BUILD_TESTS=ON", "-DAGMM_FAILPOINTS=ON",
               "-DAGMM_CUDA=ON", "-DCMAKE_UNITY_BUILD=ON", "-DCMAKE_UNITY_BUILD_BATCH_SIZE=20",
               "-DCMAKE_PROJECT_INCLUDE=" + include]
    if shutil.which("ccache"):
        command.append("-DCMAKE_CXX_COMPILER_LAUNCHER=ccache")
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)


def compile_programs(build, jobs, programs):
    """Returns the compiler's errors, or None."""
    made = subprocess.run(["ninja", "-C", build, f"-j{jobs}", *programs], stdout=subprocess.PIPE,
                          stderr=subprocess.STDOUT, encoding="utf-8", errors="replace")
    return made.stdout[-3000:] if made.returncode else None


def edit(mutant, root):
    """Returns the file's text with the mutant's mistake, or None if the edit does not apply."""
    with open(os.path.join(root, mutant.file), encoding="utf-8") as file:
        text = file.read()
    return text.replace(mutant.old, mutant.new) if text.count(mutant.old) == 1 else None


def examine(mutant, source, build, tests, found, jobs):
    """Returns "found", "survived" or "error", and what a test or the compiler said."""
    path, text, likely = os.path.join(source, mutant.file), edit(mutant, source), found.run_of(mutant)
    if text is None:
        return "error", "the edit does not apply: its text must occur once"
    with open(path, encoding="utf-8") as file:
        whole = file.read()
    try:
        with open(path, "w", encoding="utf-8") as file:
            file.write(text)
        for run in [likely, None] if likely else [None]:
            errors = compile_programs(build, jobs, [run.program] if run else PROGRAMS)
            if errors:
                return "error", "does not compile: " + errors
            failure = tests.failure_of(run) if run else tests.first_failure()
            if failure:
                found.add(mutant, failure.run)
                return "found", str(failure)
        return "survived", mutant.reason
    finally:
        with open(path, "w", encoding="utf-8") as file:
            file.write(whole)


def fault_of(mutant, outcome, said):
    if outcome == "error":
        return f"{mutant.name}: {said}"
    if outcome == "survived" and not mutant.reason:
        return f"{mutant.name}: no test has noticed that {mutant.breaks}"
    if outcome == "found" and mutant.reason:
        return f"{mutant.name}: has the reason \"{mutant.reason}\", and {said}"
    return None


def check(mutants):
    faults = [f"{mutant.name}: the edit of {mutant.file} does not apply: its text must occur once"
              for mutant in mutants if edit(mutant, ROOT) is None]
    print("\n".join(faults) if faults else f"All {len(mutants)} edits apply.")
    sys.exit(bool(faults))


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--build")
    parser.add_argument("--check", action="store_true")
    parser.add_argument("--jobs", type=int, default=os.cpu_count())
    parser.add_argument("names", nargs="*", metavar="NAME")
    arguments = parser.parse_args()
    mutants = [mutant for mutant in MUTANTS
               if not arguments.names or any(name in mutant.name for name in arguments.names)]
    if not mutants:
        sys.exit("no mutant has such a name")
    if arguments.check:
        check(mutants)
    if not arguments.build:
        parser.error("--build names a folder")
    source, build = (os.path.join(os.path.abspath(arguments.build), name) for name in ("source", "build"))
    copy_sources(source)
    configure(source, build)
    if errors := compile_programs(build, arguments.jobs, PROGRAMS):
        sys.exit("without a mutant: " + errors)
    tests = Tests(build, arguments.jobs)
    begin = time.monotonic()
    if failure := tests.first_failure():
        sys.exit(f"without a mutant: {failure}")
    print(f"Without a mutant, {len(tests.runs)} runs of tests pass in {time.monotonic() - begin:.0f} s.", flush=True)
    found = Found(os.path.join(os.path.abspath(arguments.build), "found.json"))
    counts, faults = {"found": 0, "survived": 0, "error": 0}, []
    for mutant in mutants:
        outcome, said = examine(mutant, source, build, tests, found, arguments.jobs)
        counts[outcome] += 1
        print(f"{outcome:8s} {mutant.name:48s} {said.splitlines()[0] if said else '?'}", flush=True)
        if fault := fault_of(mutant, outcome, said):
            faults.append(fault)
    print(", ".join(f"{name} {count}" for name, count in counts.items()), f"of {len(mutants)} mutants, in "
          f"{(time.monotonic() - begin) / 60:.0f} minutes.")
    print("\n".join(faults) if faults else "All that survived are explained.")
    sys.exit(bool(faults))


if __name__ == "__main__":
    main()
