"""Runs agmm and its alternatives in turn, on simulated hosts. Users start it with run.sh."""

import argparse
import itertools
import json
import pathlib
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time

import numpy

import bounds
import chart
import contenders
import report
import shapes
from hosts import CannotMakeHosts, Hosts
from machine import has_tiles, machine
from ranks import ContenderFailed

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
# rounds, seconds that a turn may take, runs of a turn
FULL, QUICK = (7, 0.5, 8), (3, 0.2, 4)
# A run of products in a row takes about ROW_US and has at most MOST_IN_A_ROW products; a row of
# fewer than two is skipped.
ROW_US, MOST_IN_A_ROW, ROWS_A_TURN = 10_000, 32, 2
QUICK_ENDS_S = 112  # no case begins that would end later if it took as long as the longest case so far
MIB = 1 << 20


def arguments():
    parser = argparse.ArgumentParser(prog="tests/bench/run.sh", description=__doc__)
    parser.add_argument(
        "--quick", action="store_true", help="four shapes and few rounds: under 2 minutes after the build"
    )
    parser.add_argument("--hosts", type=int, default=2, help="2 to 4 (default 2)")
    parser.add_argument("--rate", default="2gbit,4gbit", help="of every link each way (default 2gbit,4gbit)")
    parser.add_argument("--suite", action="store_true", help="also the suite of models, each dimension divided by 8")
    parser.add_argument(
        "--shape", action="append", default=[], metavar="MSHARDxKxNSHARD", help="only these; may be repeated"
    )
    parser.add_argument(
        "--random", type=int, metavar="COUNT", help="shapes drawn at random (default 2; 1 with --quick)"
    )
    parser.add_argument("--seed", type=int, help="of the drawn shapes (default: a new one, printed)")
    parser.add_argument("--algorithm", help="of agmm, with commas (default: all that it has)")
    parser.add_argument("--devices", type=int, default=1, help="of agmm on each host, on its one core (default 1)")
    parser.add_argument("--rounds", type=int, help=f"(default {FULL[0]}; {QUICK[0]} with --quick)")
    parser.add_argument("--build", type=pathlib.Path, default=ROOT / "build-bench", help=argparse.SUPPRESS)
    parser.add_argument(
        "--out", type=pathlib.Path, help="folder of bench.json and bench.svg (default build-bench/results)"
    )
    options = parser.parse_args()
    try:
        options.rates = [rate_bits(text) for text in options.rate.split(",")]
        options.list = shape_list(options)
    except ValueError as error:
        parser.error(str(error))
    return options


def rate_bits(text):
    units = {"gbit": 1e9, "mbit": 1e6}
    number, unit = text[:-4], text[-4:].lower()
    try:
        rate = float(number) * units[unit]
    except (KeyError, ValueError):
        raise ValueError(f'--rate "{text}" is not a rate such as 2gbit or 500mbit') from None
    if not 1e7 <= rate <= 1e11:
        raise ValueError(f'--rate "{text}" is outside 10mbit to 100gbit')
    return rate


def shape_list(options):
    options.seed = random.SystemRandom().randrange(1 << 31) if options.seed is None else options.seed
    count = options.random
    if options.shape:
        chosen = [shapes.parse(text, options.hosts) for text in options.shape]
        count = count or 0
    elif options.quick:
        decode = [shape for shape in shapes.suite(options.hosts) if shape.name == "decode M=128"]
        chosen = [shapes.parse(text, options.hosts) for text in shapes.BALANCES[:2]] + decode
        count = 1 if count is None else count
    else:
        chosen = [shapes.parse(text, options.hosts) for text in shapes.BALANCES]
        chosen += shapes.suite(options.hosts) if options.suite else []
        count = 2 if count is None else count
    return chosen + shapes.draw(options.seed, options.hosts, count, 40_000 if options.quick else 150_000)


class Bench:
    """All contenders of a run on `hosts`. They stay alive, and sleep while another one is measured."""

    def __init__(self, hosts, folder, options):
        self.hosts, self.folder, self.options = hosts, folder, options
        self.missing, self.all = {}, []
        self.started, self.longest_s, self.left_out = time.monotonic(), 0, []
        binaries = options.build / "bin"
        algorithms = options.algorithm.split(",") if options.algorithm else None
        self.agmm = self._add(contenders.Agmm(hosts, folder, binaries, algorithms, devices=options.devices))
        self.mpi = self._add(contenders.Mpi(hosts, folder, binaries))
        self.ucx = contenders.Ucx(hosts, folder, binaries)
        self.torch = None
        try:
            self.torch = self._add(contenders.Torch(hosts, folder, contenders.find_torch()))
        except ContenderFailed as error:
            self.missing["torch"] = str(error)

    def _add(self, contender):
        self.all.append(contender)
        return contender

    def close(self):
        for contender in [*self.all, self.ucx]:
            contender.close()

    def cases(self, shape):
        """Measures `shape` at every rate. Checks the C of every contender once, at the first rate that is measured."""
        data = self.folder / "data"
        data.mkdir()
        a, b = shapes.integers(shapes.SEED_A, shape.m, shape.k), shapes.integers(shapes.SEED_B, shape.k, shape.n)
        a.tofile(data / "A.i8")
        b.tofile(data / "B.i8")
        checked = False
        for rate in self.options.rates:
            began = time.monotonic()
            if self.options.quick and began + self.longest_s > self.started + QUICK_ENDS_S:
                self.left_out.append(f"{shape.name} at {rate / 1e9:g} Gbit/s: there was no time")
                continue
            self.hosts.limit(rate)
            try:
                self.agmm.measure()
            except contenders.WorldIsUnsteady as error:
                self.left_out.append(f"{shape.name} at {rate / 1e9:g} Gbit/s: {error}")
                continue
            notes = {}
            for contender in self.all:
                notes.update(contender.set_shape(shape, data))
            if not checked:
                self._check(a, b)
                checked = True
            case = self._measure(shape, rate, notes)
            self.longest_s = max(self.longest_s, time.monotonic() - began)
            yield case
        shutil.rmtree(data)

    def _check(self, a, b):
        rows = shapes.sampled_rows(a.shape[0], self.hosts.count)
        exact = shapes.reference(a, b, rows)
        for contender in self.all:
            for form, products in itertools.product(contender.forms, (1, 3)):
                got = contender.rows(form, rows, products)
                wrong = numpy.argwhere(got != exact)
                if len(wrong):
                    row, col = wrong[0]
                    raise ContenderFailed(
                        f"{form} computes garbage, {products} in a row: C[{rows[row]}, {col}] has the bits {got[row, col]:#06x} and should have "
                        f"{exact[row, col]:#06x}; {len(wrong)} of {exact.size} sampled elements are wrong"
                    )

    def _measure(self, shape, rate, notes):
        rounds, turn_s, most = QUICK if self.options.quick else FULL
        rounds = self.options.rounds or rounds
        to_each = bounds.bytes_to_each(shape.m, shape.n, shape.k, self.hosts.count)
        case = {
            "rate_bits": rate,
            "name": shape.name,
            "m": shape.m,
            "n": shape.n,
            "k": shape.k,
            "hosts": self.hosts.count,
            "samples_us": {},
            "gemm_us": {},
            "gather_us": {},
            "c_ns": [],
            "notes": notes,
        }
        runs = {
            "samples_us": [(form, contender, form) for contender in self.all for form in contender.forms],
            "gemm_us": [
                ("B plain", self.mpi, "gemm_plain"),
                ("B packed", self.mpi, "gemm_packed"),
                ("widened to f32", self.mpi, "gemm_widened"),
            ],
        }
        gathers = {
            "mpi": lambda count: self.mpi.run("gather", count),
            "ucx": lambda count: self.ucx.move(to_each, count)[0],
        }
        if has_tiles():
            runs["gemm_us"].append(("agmm's tiles", self.mpi, "gemm_tiles"))
        if self.torch:
            gathers["torch"] = lambda count: self.torch.run("gather", count)

        def turns_of(to, products):
            return [
                (
                    to.setdefault(kind, {}).setdefault(name, []),
                    lambda count, c=contender, f=form: c.run(f, count, products),
                )
                for kind, chosen in runs.items()
                for name, contender, form in chosen
            ]

        turns = turns_of(case, 1)  # where the samples go, and what runs
        turns += [(case["gather_us"].setdefault(name, []), run) for name, run in gathers.items()]
        alone_us = [min(run(2)) for _, run in turns]
        counts = [max(1, min(most, int(turn_s * 1e6 / max(us, 1)))) for us in alone_us]
        products = min(MOST_IN_A_ROW, int(ROW_US / min(alone_us[: len(runs["samples_us"])])))
        if products > 1:
            case["in_a_row"] = {"products": products}
            rows = turns_of(case["in_a_row"], products)
            turns += rows
            counts += [ROWS_A_TURN] * len(rows)
        for number in range(rounds):
            first = number * len(turns) // rounds
            for i in [*range(first, len(turns)), *range(first)]:
                samples, run = turns[i]
                samples += run(counts[i] + 1)[1:]  # the first one finds what the others have left in the caches
            self.ucx.move(16 * MIB, 1)
            case["c_ns"].append(
                self.ucx.move((64 if self.options.quick else 128) * MIB // (self.hosts.count - 1), 1)[1]
            )
        if self.agmm.gather_us:
            case["gather_us"]["agmm"] = self.agmm.gather_us
        case["launch_us"] = self.agmm.launch_us[1]
        if products > 1:
            case["in_a_row"]["launch_us"] = self.agmm.launch_us[products]
        case["unfused"] = [
            form
            for form in ("agmm serial", "mpi allgather + gemm", "torch gloo + matmul")
            if form in case["samples_us"]
        ]
        case["figures"] = bounds.figures(case)
        if "in_a_row" in case:
            case["in_a_row"]["figures"] = bounds.figures({**case, **case["in_a_row"]})
        return case


def scratch_folder():
    """Removes the folders that killed runs have left: only one run at a time can hold Hosts."""
    for left in pathlib.Path(tempfile.gettempdir()).glob("agmm-bench.*"):
        shutil.rmtree(left, ignore_errors=True)
    return tempfile.TemporaryDirectory(prefix="agmm-bench.")


def main():
    options = arguments()
    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, lambda number, _: sys.exit(128 + number))
    out = options.out or options.build / "results"
    out.mkdir(parents=True, exist_ok=True)
    started = time.monotonic()
    with Hosts(options.hosts) as hosts, scratch_folder() as scratch:
        bench = Bench(hosts, pathlib.Path(scratch), options)
        run = {
            "schema": "agmm.bench.v1",
            "machine": machine(bench.torch and bench.torch.version),
            "seed": options.seed,
            "rounds": options.rounds or (QUICK if options.quick else FULL)[0],
            "hosts": options.hosts,
            "devices": options.devices,
            "share_cores": hosts.share_cores,
            "missing": bench.missing,
            "left_out": [],
            "cases": [],
        }
        print("\n".join(report.machine_lines(run)), flush=True)
        for shape in options.list:
            for case in bench.cases(shape):
                run["cases"].append(case)
                print("\n" + "\n".join(report.case_lines(case)), flush=True)
        bench.close()
        run["left_out"] = bench.left_out
    print("\n" + "\n".join(report.summary_lines(run)))
    (out / "bench.json").write_text(json.dumps(run, indent=1) + "\n")
    (out / "bench.svg").write_text(chart.svg(run))
    print(f"every contender's C was right; {out}/bench.json, {out}/bench.svg; {time.monotonic() - started:.0f} s")


if __name__ == "__main__":
    try:
        main()
    except (CannotMakeHosts, ContenderFailed) as error:
        sys.exit(f"tests/bench/run.sh: {error}")
    except KeyboardInterrupt:
        sys.exit(130)
