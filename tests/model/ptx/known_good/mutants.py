"""Breaks one synchronisation at a time in the PTX of kernels that are right, and asks the PTX model whether it notices.

    mutants.py --build FOLDER [--jax FOLDER] [--cutlass FOLDER] [KERNEL...]     the kernels of RUNNERS, by default all
    mutants.py --build FOLDER --ptx FILE --name KERNEL COMMAND...               any other one

A runner is a command that takes PTX_FILE, PTX_SEED, PTX_MODE and PTX_STARVED from the environment (run_settings.h). Its
exit status is 0 if the kernel is right and without findings, 1 if it is wrong, 2 with findings, 3 for a stop; anything
else counts as a crash.

explained.txt lists the mutants that stay silent, with reasons; its head says how. The script fails if a silent mutant is
not listed there, if a listed one is noticed, and if mutants that must be noticed together are not. MISTAKES has those that
must be noticed in a kernel of agmm, by name; its runner takes RING_MISTAKE, a mistake of the host, from the environment.
"""

import argparse
import collections
import dataclasses
import os
import re
import subprocess
import sys
import time

import build

EXPLAINED = os.path.join(build.FOLDER, "explained.txt")
# Seed, mode and starved CTA.
TRIES = [("1", "random", ""), ("1", "late", ""), ("2", "random", ""), ("1", "eager", ""), ("2", "late", ""),
         ("1", "random", "0:0"), ("1", "late", "0:1")]
SECONDS = 60  # of a run
OUTCOMES = {0: "silent", 1: "wrong", 2: "finding", 3: "stop"}

# A rule: its name, the text that it looks for, and the text instead. A guard before the text goes with it.
GUARD = r"(?:@!?%\w+\s+)?"
ORDERED = r"(\b(?:ld|st|red|atom|multimem\.\w+)\.(?:[\w:]+\.)*?)"


def one_more(match):
    return f"{match.group(1)}{int(match.group(2)) + 1}{match.group(3)}"


def one_less(match):
    return f"{match.group(1)}{int(match.group(2)) - 1}{match.group(3)}"


def expect_less(match):
    """16 bytes less in an expect_tx; the number may be a register."""
    before, amount = match.group(1), match.group(2)
    if amount.isdigit():
        return f"{before}{int(amount) - 16};"
    guard = re.match(GUARD, before).group(0)
    return f"{{ .reg .b32 less; sub.s32 less, {amount}, 16; {guard}{before[len(guard):]}less; }}"


RULES = [
    ("fence.proxy.async deleted", GUARD + r"fence\.proxy\.async[^;]*;", ""),
    ("fence.proxy.async of global memory", r"fence\.proxy\.async(?:\.shared::cta|\.shared::cluster)?;",
     "fence.proxy.async.global;"),
    ("fence.proxy.async of shared memory", r"fence\.proxy\.async(?:\.global)?;", "fence.proxy.async.shared::cta;"),
    ("fence.mbarrier_init deleted", GUARD + r"fence\.mbarrier_init[^;]*;", ""),
    ("fence.proxy.tensormap deleted", GUARD + r"fence\.proxy\.tensormap[^;]*;", ""),
    ("mbarrier wait made true", r"mbarrier\.try_wait\S*\s+(\w+),[^;]*;", r"setp.eq.u32 \1, 0, 0;"),
    ("mbarrier arrive deleted", GUARD + r"mbarrier\.arrive\.(?!expect_tx)[^;]*;", ""),
    ("mbarrier arrive relaxed", r"mbarrier\.arrive(?:\.expect_tx)?\.release(?=\.)",
     lambda match: match.group(0).replace("release", "relaxed")),
    ("remote arrive to itself", r"mapa\.shared::cluster\.u32\s+(\w+), (%\w+), %\w+;", r"mov.u32 \1, \2;"),
    ("expect_tx 16 bytes less",
     "(" + GUARD + r"mbarrier\.(?:arrive\.)?expect_tx\S*\s+(?:_,\s*)?\[[^\]]*\],\s*)(%?\w+)\s*;", expect_less),
    ("wgmma.fence deleted", GUARD + r"wgmma\.fence[^;]*;", ""),
    ("wgmma.commit deleted", GUARD + r"wgmma\.commit_group[^;]*;", ""),
    ("wgmma.wait_group deleted", GUARD + r"wgmma\.wait_group[^;]*;", ""),
    ("wgmma.wait_group +1", r"(wgmma\.wait_group\.sync\.aligned\s+)(\d+)(;)", one_more),
    ("bulk commit deleted", GUARD + r"cp\.async\.bulk\.commit_group[^;]*;", ""),
    ("bulk wait_group deleted", GUARD + r"cp\.async\.bulk\.wait_group\s[^;]*;", ""),
    ("bulk wait_group only .read", r"cp\.async\.bulk\.wait_group(?=\s)", "cp.async.bulk.wait_group.read"),
    ("bulk wait_group.read deleted", GUARD + r"cp\.async\.bulk\.wait_group\.read[^;]*;", ""),
    ("bulk wait_group.read +1", r"(cp\.async\.bulk\.wait_group\.read\s+)(\d+)(\s*;)", one_more),
    ("bar.sync deleted", GUARD + r"(?:bar|barrier(?:\.cta)?)\.sync(?:\.aligned)?\s[^;]*;", ""),
    ("bar.arrive deleted", GUARD + r"(?:bar|barrier(?:\.cta)?)\.arrive(?:\.aligned)?\s[^;]*;", ""),
    ("bar.warp.sync deleted", GUARD + r"bar\.warp\.sync[^;]*;", ""),
    # The wait alone: without an arrive, the other threads would wait without end.
    ("cluster wait deleted", GUARD + r"barrier\.cluster\.wait[^;]*;", ""),
    ("cluster arrive relaxed", r"barrier\.cluster\.arrive(?:\.release)?(?=\.aligned|;)",
     "barrier.cluster.arrive.relaxed"),
    ("acquire made relaxed", ORDERED + r"acquire(?=\.)", r"\1relaxed"),
    ("release made relaxed", ORDERED + r"release(?=\.)", r"\1relaxed"),
    ("acq_rel made acquire", ORDERED + r"acq_rel(?=\.)", r"\1acquire"),
    ("acq_rel made release", ORDERED + r"acq_rel(?=\.)", r"\1release"),
    ("acq_rel made relaxed", ORDERED + r"acq_rel(?=\.)", r"\1relaxed"),
    ("system scope made gpu", ORDERED + r"((?:acquire|release|acq_rel|relaxed)\.)sys(?=\.)", r"\1\2gpu"),
    ("gpu scope made cta", ORDERED + r"((?:acquire|release|acq_rel|relaxed)\.)gpu(?=\.)", r"\1\2cta"),
    ("tensor map scope gpu made cta", r"(tensormap\S*generic\.(?:acquire|release)\.)gpu", r"\1cta"),
    ("memory fence deleted", GUARD + r"(?:fence\.(?:acq_rel|sc|acquire|release)|membar)[^;]*;", ""),
    ("memory fence of system made gpu", r"fence\.(acq_rel|sc|acquire|release)\.sys;", r"fence.\1.gpu;"),
    ("memory fence of gpu made cta", r"fence\.(acq_rel|sc|acquire|release)\.gpu;", r"fence.\1.cta;"),
    ("signal deleted", GUARD + r"(?:red|multimem\.red|st)\.release[^;]*;", ""),
    ("semaphore wait one less", r"(setp\.lt\.u32\s+%p\d+, %r\d+, )(\d+)(;)", one_less),
]
# A comparison waits for a semaphore if a strong load is this near before it.
POLL, POLL_LINES = r"ld\.(?:relaxed|acquire|volatile)\S*\s+%r\d+", 6

# Rules for kernels of kernels/cuda/sm90 alone.
AGMM_RULES = [
    ("wrong parity", r"again: (mbarrier\.try_wait\S*\s+over, \[%\w+\], )(%\w+);",
     r"again: { .reg .b32 other; xor.b32 other, \2, 1; \1other; }"),
    ("multicast to the leader alone", r"(cp\.async\.bulk\.tensor\S*\.multicast::cluster .*, )%rs\d+;",
     r"{ .reg .b16 leader; mov.b16 leader, 1; \1leader; }"),
    ("address in the own CTA", r"mapa\.shared::cluster\.u32\s+(%\w+), (%\w+), %\w+;", r"mov.u32 \1, \2;"),
    ("cluster scope made cta", ORDERED + r"((?:acquire|release|acq_rel|relaxed)\.)cluster(?=\.)", r"\1\2cta"),
]
AGMM = "agmm_"


def flag_before_data(lines):
    """The wait for the stores comes after the signals of the piece. Yields (line, edits)."""
    signals = [number for number, line in enumerate(lines) if "st.release.sys" in line]
    counts = [number for number, line in enumerate(lines) if "atom.acq_rel.gpu" in line]
    if not signals:
        return
    wait = max(number for number, line in enumerate(lines[:counts[0]]) if "cp.async.bulk.wait_group 0;" in line)
    yield wait, {wait: "", **{number: lines[number] + " cp.async.bulk.wait_group 0;" for number in signals}}


def waiter_without_epoch(lines):
    """Any epoch but 0 will do. Yields (line, edits)."""
    for number, line in enumerate(lines):
        load = re.search(r"ld\.acquire\.sys\S*\s+(%rd\d+)", line)
        if not load:
            continue
        compare = re.compile(r"(setp\.(?:lt|ge)\.u64\s+%p\d+, " + load.group(1) + r", )%rd\d+;")
        at = next(later for later in range(number, number + POLL_LINES) if compare.search(lines[later]))
        yield at, {at: compare.sub(r"\g<1>1;", lines[at])}


def expect_clipped(lines):
    """At the end of K, a stage expects only the bytes inside of the matrices. Yields (line, edits)."""
    if grants_in(lines):
        return  # the tile is another one
    at = next(number for number, line in enumerate(lines) if "mbarrier.arrive.expect_tx" in line)
    k = re.findall(r"add\.s32\s+%r\d+, (%r\d+), 63;", "\n".join(lines[:at]))[-1]
    step = re.search(r"shl\.b32\s+%r\d+, (%r\d+), 6;", "\n".join(lines[at:])).group(1)
    # Tiles of 128 rows and columns, and elements of 2 bytes.
    clipped = f"shl.b32 bytes, {step}, 6; sub.s32 bytes, {k}, bytes; shl.b32 bytes, bytes, 9; min.s32 bytes, bytes, 32768;"
    yield at, {at: "{ .reg .b32 bytes; " + clipped + re.sub(r"%r\d+;", "bytes;", lines[at]) + " }"}


def grants_in(lines):
    """Where the leader of a cluster grants a piece."""
    return [number for number, line in enumerate(lines) if "st.release.cluster.shared::cluster" in line]


def grant_before_acquire(lines):
    """The leader of a cluster also grants a piece before it waits for its slots. Yields (line, edits)."""
    for grant in grants_in(lines):
        begin = max(number for number, line in enumerate(lines[:grant]) if line.startswith("$L__BB"))
        code = [re.sub(r"//.*", "", line).strip() for line in lines[begin + 1:grant + 1]]
        code = " ".join(line for line in code if line and not line.startswith((".loc", "$L__tmp")))
        granted = re.search(r"cvt\.u32\.u16\s+%r\d+, (%rs\d+);", code).group(1)
        polls = [number for number, line in enumerate(lines[:begin]) if "ld.acquire.sys" in line]
        yield grant, {number: f"mov.u16 {granted}, 1; {code} {lines[number]}" for number in polls}


# Mistakes that take more than a rule for one line.
AGMM_EDITS = [
    ("grant before the acquire", grant_before_acquire),
    ("flag before data", flag_before_data),
    ("waiter that ignores the epoch", waiter_without_epoch),
    ("expect_tx of the clipped bytes", expect_clipped),
]
# Mistakes that must be noticed in these kernels, by name: a rule and a text that its lines contain, or None for a mistake
# of the host, which the runner makes.
MISTAKES = {"agmm_ring_bf16_bf16_128": {
    "flag before data": ("flag before data", ""),
    ".read instead of the full wait": ("bulk wait_group only .read", ""),
    "relaxed flag": ("release made relaxed", "st.release"),
    ".gpu flag": ("system scope made gpu", "st.release"),
    "no proxy fence after the acquire": ("fence.proxy.async deleted", ""),
    ".shared proxy fence": ("fence.proxy.async of shared memory", ""),
    "stage refilled while it is being sent": ("bulk wait_group.read deleted", ""),
    "credit raised early": None,
    "wrong parity": ("wrong parity", ""),
    "expect_tx of the clipped bytes at a ragged edge": ("expect_tx of the clipped bytes", ""),
    "relaxed local counter": ("acq_rel made relaxed", "atom"),
    "waiter that ignores the epoch": ("waiter that ignores the epoch", ""),
    "one slot for two steps": None,
}, "agmm_product_bf16_bf16_256_2": {
    "stage released to the own CTA alone": ("address in the own CTA", ""),
    "no wait of the cluster at the end": ("cluster wait deleted", ""),
    "relaxed grant": ("release made relaxed", "st.release.cluster"),
    "grant of the scope of a CTA": ("cluster scope made cta", "st.release"),
    "grant before the acquire": ("grant before the acquire", ""),
    "relaxed look at the grant": ("acquire made relaxed", "ld.acquire.cluster"),
    "no proxy fence after the grant": ("fence.proxy.async deleted", ""),
    "multicast to the leader alone": ("multicast to the leader alone", ""),
}}


@dataclasses.dataclass(frozen=True)
class Mutant:
    rule: str
    place: int  # the how-manieth place of the rule, from 1
    line: int   # from 0
    text: str   # of the line
    edits: tuple  # (line, its new text)

    def __str__(self):
        return f"{self.rule} / {self.place}"


def mutants_of(lines, name):
    """All mutants of a kernel's PTX text, in the order of the rules."""
    found = []

    def add(rule, place, number, edits):
        found.append(Mutant(rule, place, number, " ".join(lines[number].split()), tuple(edits.items())))

    for rule, pattern, instead in RULES + AGMM_RULES * name.startswith(AGMM):
        place = 0
        for number, line in enumerate(lines):
            before = "\n".join(lines[max(0, number - POLL_LINES):number])
            if rule.startswith("semaphore") and not re.search(POLL, before):
                continue
            changed = re.sub(pattern, instead, line)
            if changed != line:
                place += 1
                add(rule, place, number, {number: changed})
    for rule, edits_of in AGMM_EDITS * name.startswith(AGMM):
        for place, (number, edits) in enumerate(edits_of(lines), 1):
            add(rule, place, number, edits)
    return found


@dataclasses.dataclass
class Runner:
    ptx: str
    command: list


class Kernel:
    """A kernel, its runner and its mutants."""

    def __init__(self, name, runner, folder):
        self.name, self.runner = name, runner
        with open(runner.ptx, encoding="utf-8") as file:
            self.lines = file.read().split("\n")
        self.mutants = mutants_of(self.lines, name)
        self.path = os.path.join(folder, f"mutant_{name}.ptx")
        self.runs = 0

    def outcome(self, *mutants, mistake=""):
        """How the first run ends that is not silent, and what it says. A mistake is one of the host."""
        lines = list(self.lines)
        for mutant in mutants:
            for number, text in mutant.edits:
                lines[number] = text
        with open(self.path, "w", encoding="utf-8") as file:
            file.write("\n".join(lines))
        for seed, mode, starved in TRIES:
            environment = dict(os.environ, PTX_FILE=self.path, PTX_SEED=seed, PTX_MODE=mode, PTX_STARVED=starved,
                               RING_MISTAKE=mistake)
            self.runs += 1
            try:
                run = subprocess.run(self.runner.command, env=environment, capture_output=True, text=True,
                                     timeout=SECONDS, check=False)
            except subprocess.TimeoutExpired:
                return "hang", ""
            if "unknown instruction" in run.stdout + run.stderr:
                return "refused", "the model does not know the instruction, so this proves nothing"
            if run.returncode != 0:
                said = re.search(r"^(?:stop: |finding[^:]*: )(.*)", run.stdout + run.stderr, re.M)
                return OUTCOMES.get(run.returncode, f"crash {run.returncode}"), said.group(1) if said else ""
        return "silent", ""

    def find(self, key):
        rule, place = (part.strip() for part in key.rsplit(" / ", 1))
        return next((mutant for mutant in self.mutants if (mutant.rule, str(mutant.place)) == (rule, place)), None)


@dataclasses.dataclass
class Group:
    """Silent mutants that explained.txt explains together."""
    kernel: str
    mutants: list   # key and text of the line
    reason: str = ""
    together: list = dataclasses.field(default_factory=list)  # lists of keys that must be noticed when broken at once


def read_explained(path):
    """Returns the groups of explained.txt."""
    groups, kernel = [], ""
    with open(path, encoding="utf-8") as file:
        for number, line in enumerate(file, 1):
            line = line.rstrip()
            if not line or line.startswith("#"):
                continue
            word, _, rest = line.strip().partition(" ")
            if word == "kernel":
                kernel = rest
            elif word == "silent":
                key, _, text = rest.partition(": ")
                if not groups or groups[-1].reason or groups[-1].kernel != kernel:
                    groups.append(Group(kernel, []))
                groups[-1].mutants.append((key, text))
            elif word == "because":
                groups[-1].reason = rest
            elif word == "together":
                groups[-1].together.append([key.strip() for key in rest.split(" + ")])
            elif groups and groups[-1].reason and not groups[-1].together:
                groups[-1].reason += " " + line.strip()
            else:
                sys.exit(f"{path}:{number}: no such line: {line}")
    return groups


def check_explained(kernel, groups, silent):
    """Compares silent mutants with their explanations. Returns the faults."""
    faults, explained = [], set()
    for group in groups:
        for key, text in group.mutants:
            mutant = kernel.find(key)
            if mutant is None or mutant.text != text:
                faults.append(f"explained.txt: {key}: the line is now: {mutant.text if mutant else 'none'}")
                continue
            explained.add(mutant)
            if mutant not in silent:
                faults.append(f"explained.txt: {key} is noticed by now")
        if not group.reason:
            faults.append(f"explained.txt: {group.mutants[0][0]} has no reason")
        for keys in group.together:
            mutants = [mutant for key in keys for mutant in members(kernel, group, key)]
            outcome = kernel.outcome(*mutants)[0] if None not in mutants else "unknown"
            print(f"    together {' + '.join(keys)}: {outcome}", flush=True)
            if outcome in ("silent", "unknown"):
                faults.append(f"explained.txt: {' + '.join(keys)} together: {outcome}")
    return faults + [f"silent, and not in explained.txt: {mutant}: {mutant.text}"
                     for mutant in silent if mutant not in explained]


def check_mistakes(kernel, noticed):
    """Prints which mutants of MISTAKES are noticed. Returns the faults."""
    faults = []
    for name, place in MISTAKES.get(kernel.name, {}).items():
        if place is None:
            outcome, said = kernel.outcome(mistake=name)
            found, total = outcome != "silent", 1
        else:
            mutants = [mutant for mutant in kernel.mutants if mutant.rule == place[0] and place[1] in mutant.text]
            said = next((noticed[mutant] for mutant in mutants if mutant in noticed), "")
            found, total = sum(mutant in noticed for mutant in mutants), len(mutants)
        print(f"    {name}: {found:d} of {total} noticed: {said[:100]}", flush=True)
        if not found:
            faults.append(f"not noticed: {name}")
    return faults


def members(kernel, group, key):
    """The mutants that a key of `together` names: "all" is the group itself."""
    if key == "all":
        return [kernel.find(name) for name, _ in group.mutants]
    return [kernel.find(key)]


def examine(kernel, groups, verbose):
    """Runs all mutants of a kernel. Returns the faults."""
    begin = time.time()
    outcome, said = kernel.outcome()
    if outcome != "silent":
        return [f"{kernel.name} itself: {outcome}: {said}"]
    table, silent, noticed, faults = collections.defaultdict(collections.Counter), [], {}, []
    for mutant in kernel.mutants:
        outcome, said = kernel.outcome(mutant)
        table[mutant.rule][outcome] += 1
        if outcome == "silent":
            silent.append(mutant)
        else:
            noticed[mutant] = f"{outcome}: {said}"
        if outcome == "refused":
            faults.append(f"{mutant}: {said}")
        if verbose:
            print(f"  {mutant}: {outcome}: {mutant.text}: {said[:200]}", flush=True)
    for rule, counts in table.items():
        total = sum(counts.values())
        said = ", ".join(f"{name} {count}" for name, count in sorted(counts.items()))
        print(f"{kernel.name:14s} {rule:36s} {total - counts['silent']:3d} of {total:3d} noticed: {said}")
    print(f"{kernel.name:14s} {len(kernel.mutants) - len(silent)} of {len(kernel.mutants)} noticed, "
          f"in {kernel.runs} runs, {time.time() - begin:.0f} s", flush=True)
    if verbose:
        for mutant in silent:
            print(f"  silent {mutant}: {mutant.text}")
    faults += check_mistakes(kernel, noticed)
    return faults + check_explained(kernel, [group for group in groups if group.kernel == kernel.name], silent)


def runners(arguments):
    """The kernels that are known to be right, and those of agmm."""
    found = {}
    for name in ("masked", "tiles", "maps"):
        found[name] = lambda name=name: Runner(os.path.join(build.FOLDER, "triton", name + ".ptx"),
                                               [build.triton_run(arguments.build), name])
    for name in ("pingpong", "cooperative_2x1", "split_k"):
        found[name] = lambda name=name: cutlass_runner(name, arguments)
    for name in ("all_gather", "reduce_scatter", "ring4_fixed"):
        found[name] = lambda name=name: jax_runner(name, arguments)
    for name in ("agmm_product_bf16_bf16_128", "agmm_product_bf16_bf16_256_2", "agmm_ring_bf16_bf16_128"):
        found[name] = lambda name=name: product_runner(name, arguments)
    return found


def product_runner(name, arguments):
    """A kernel of kernels/cuda/sm90, out of the image that a build of agmm made."""
    if not arguments.agmm:
        sys.exit(f"{name}: --agmm names the build folder of agmm")
    ptx = os.path.join(arguments.build, name + ".ptx")
    with open(ptx, "w", encoding="utf-8") as file:
        file.write(build.kernel_in_image(os.path.join(arguments.agmm, "kernels/cuda/sm90/product.fatbin"), name))
    return Runner(ptx, [os.path.join(arguments.agmm, "bin/sm90_run"), name])


def cutlass_runner(name, arguments):
    import cutlass
    program, ptx = cutlass.build_kernel(name, arguments.build, arguments.cutlass)
    # The first two: with C, and without.
    return Runner(ptx, cutlass.command(name, program, cutlass.KERNELS[name].problems[:2]))


def jax_runner(name, arguments):
    python = os.path.join(arguments.jax or os.path.join(arguments.build, "jax"), "bin", "python")
    script = os.path.join(build.FOLDER, "jax_kernels.py")
    ptx = os.path.join(arguments.build, name + ".ptx")
    if not os.path.exists(ptx):
        sys.exit(f"run jax_kernels.py --build {arguments.build} {name} before")
    return Runner(ptx, [python, script, "--build", arguments.build, "--run", name])


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--build", required=True)
    parser.add_argument("--jax", help="the virtual environment of jax_kernels.py")
    parser.add_argument("--cutlass", help="that of cutlass.py")
    parser.add_argument("--agmm", help="a build folder of agmm, with bin/sm90_run")
    parser.add_argument("--ptx")
    parser.add_argument("--name")
    parser.add_argument("--verbose", action="store_true")
    parser.add_argument("names", nargs="*", metavar="KERNEL")
    arguments = parser.parse_args()
    os.makedirs(arguments.build, exist_ok=True)
    if arguments.ptx:
        kernels = {arguments.name: lambda: Runner(arguments.ptx, arguments.names)}
    else:
        all_runners = runners(arguments)
        kernels = {name: all_runners[name] for name in arguments.names or all_runners}
    groups, faults = read_explained(EXPLAINED), []
    for name, make in kernels.items():
        kernel = Kernel(name, make(), arguments.build)
        faults += [f"{name}: {fault}" for fault in examine(kernel, groups, arguments.verbose)]
    print("\n".join(faults) if faults else "All silent mutants are explained.")
    sys.exit(bool(faults))


if __name__ == "__main__":
    main()
