#!/usr/bin/env python3
"""Compares products whose K is cut, in f32, with those of MPI + oneDNN and PyTorch (Gloo), in turn, on two simulated
hosts with limited links.

    tests/bench/sums.py [--binaries build-bench/bin] [--rate 2,4] [--algorithm auto,serial,direct:8]

Needs root (network namespaces, see hosts.py) and the programs that tests/bench/run.sh builds. Gloo is left out without
torch (AGMM_TORCH_PYTHON, see NOTES.md). An algorithm may have a number of chunks, and of chunks along K: direct:8:2.

    T_gemm      a rank's product alone, on all hosts at once, by the fastest
    T_comm      the collective alone, by the fastest; or the bare UCX loop, which moves as many bytes and adds up nothing
    T_lb_cpu    max(T_comm, T_gemm + c bytes), see bounds.py
"""

import argparse
import os
import pathlib
import sys
import tempfile
from statistics import median
from typing import NamedTuple

import numpy

import bounds
import shapes
from contenders import Agmm, ContenderFailed, Mpi, Torch, Ucx, find_torch
from hosts import CannotMakeHosts, Hosts
from machine import ROOT, machine
from report import ms, number

HOSTS = 2
TURN_US, MOST_RUNS = 400_000, 8  # of a turn
MIB = 1 << 20
F32_BYTES = 4


class Form(NamedTuple):
    name: str  # as in mpi_sums.cc
    b: str  # shardings of B and C; A is [M, K_x]
    c: str
    collective: str  # a spec of agmm
    shapes: tuple  # (M, N, K): the transfer dominates, balanced, the arithmetic dominates

    def spec(self):
        return f"A[M, K_x] * B{self.b} -> C{self.c}"


# At 2 Gbit/s each rank sends for 34 ms, or for 67 ms in an all-reduce. No split of these products moves fewer bytes.
FORMS = (
    Form(
        "k_gather",
        "[K, N_x]",
        "[M, N_x]",
        "A[M, K_x] -> G[M, K]",
        ((16384, 256, 256), (4096, 1024, 1024), (4096, 4096, 1024)),
    ),
    Form("reduce_scatter", "[K_x, N]", "[M_x, N]", "P[M, N]{U_x} -> R[M_x, N]", shapes.SUMS),
    Form("all_reduce", "[K_x, N]", "[M, N]", "P[M, N]{U_x} -> R[M, N]", shapes.SUMS),
)


class AgmmSums(Agmm):
    gemms = ()

    def set_product(self, form, m, n, k, data):
        self.form, self.size = form, (m, n)
        for tensor in self._ctl("tensor", "list")["tensors"]:
            self._ctl("tensor", "rm", f"#{tensor['tensor_id']}")
        integers = ("--kind", "integers", "--seed")
        self._fill("bench.A", m, k, "[M, K_x]", *integers, str(shapes.SEED_A), dtype="f32")
        self._fill("bench.B", k, n, form.b, *integers, str(shapes.SEED_B), dtype="f32")
        if form.name != "k_gather":
            self._run("auto", 1, "A[M, K_x] * B[K_x, N] -> P[M, N]{U_x}")  # the source of the collective
        notes = []
        for name, algorithm in self.forms.items():
            self.time(algorithm, 1)
            job = self._ctl("job", "list", "--limit", "1")["jobs"][0]
            notes.append(f"{name}: {job['algorithm']} {job['chunks']}x{job['k_chunks']}")
        return ", ".join(notes)

    def time(self, what, count):
        if what == "collective":
            return self._run("auto", count, self.form.collective)
        return self._run(what, count, self.form.spec())

    def _run(self, algorithm, count, spec):
        answer = self.client.call(f"run {algorithm} {count} 1 {spec}")[0].split()
        return [float(word) for word in answer[:count]]

    def rows(self, algorithm, rows):
        m, n = self.size
        self._fill("bench.C", m, n, self.form.c, "--kind", "constant", "--value", "0.5", dtype="f32")
        self.time(algorithm, 1)
        file = self.folder / "C.raw"
        self._ctl("tensor", "get", "bench.C", str(file), "--raw")
        return numpy.array(numpy.memmap(file, numpy.float32, "r", shape=(m, n))[rows])


class RankSums:
    """A contender with ranks that answer mpi_sums.cc's commands."""

    def set_product(self, form, m, n, k, data):
        self.form, self.size = form, (m, n)
        return " ".join(self.ranks.call(f"shape {form.name} {m} {n} {k} {data}")[0].split())

    def time(self, what, count):
        return self.ranks.run(what, count)

    def rows(self, _, rows):
        file = self.ranks.folder / "rows"
        self.ranks.call(f"rows {file} {' '.join(map(str, rows))}")
        parts = [numpy.fromfile(f"{file}.{rank}", numpy.float32) for rank in range(HOSTS)]
        if self.form.name == "k_gather":
            return numpy.hstack([part.reshape(len(rows), -1) for part in parts])
        if self.form.name == "reduce_scatter":
            return numpy.concatenate(parts).reshape(len(rows), -1)
        # Every rank has all of C; an element on which they differ is wrong.
        return numpy.where(parts[0] == parts[1], parts[0], numpy.nan).reshape(len(rows), -1)


class MpiSums(RankSums, Mpi):
    forms = {"MPI": "unfused"}
    gemms = ("gemm_plain", "gemm_packed")


class TorchSums(RankSums, Torch):
    forms = {"gloo": "unfused"}
    gemms = ("gemm",)


class Bench:
    def __init__(self, hosts, folder, binaries, algorithms):
        self.hosts, self.data = hosts, folder / "data"
        self.data.mkdir()
        self.ucx = Ucx(hosts, folder, binaries)
        self.all = [AgmmSums(hosts, folder, binaries, algorithms), MpiSums(hosts, folder, binaries, "mpi_sums")]
        try:
            self.all.append(TorchSums(hosts, folder, find_torch(), "torch_sums.py"))
        except ContenderFailed as error:
            print(f"without gloo: {error}", file=sys.stderr)
        self.names = [name for contender in self.all for name in contender.forms]

    def close(self):
        for contender in [*self.all, self.ucx]:
            contender.close()

    def set_product(self, form, m, n, k):
        """Prepares all contenders and checks the C of each."""
        a, b = shapes.integers(shapes.SEED_A, m, k), shapes.integers(shapes.SEED_B, k, n)
        a.tofile(self.data / "A.i8")
        b.tofile(self.data / "B.i8")
        rows = shapes.sampled_rows(m, HOSTS)
        exact = a[rows].astype(numpy.float32) @ b.astype(numpy.float32)
        for contender in self.all:
            note = contender.set_product(form, m, n, k, self.data)
            if note:
                print(f"{form.name} {m}x{n}x{k}: {note}", file=sys.stderr)
            for name, what in contender.forms.items():
                wrong = int((contender.rows(what, rows) != exact).sum())
                if wrong:
                    raise ContenderFailed(f"{name} computes garbage: {wrong} of {exact.size} sampled elements are wrong")

    def measure(self, form, m, n, k, rounds):
        """Returns {"t", "gemm" or "comm": {who: median in microseconds}} and c, at the current rate."""
        to_each = bytes_to_each(form, m, n, k)
        who = dict(zip(("agmm", "MPI", "gloo"), self.all))
        runs = {
            "t": {name: timer(c, what) for c in self.all for name, what in c.forms.items()},
            "gemm": {f"{name} {what}": timer(c, what) for name, c in who.items() for what in c.gemms},
            "comm": {name: timer(c, "collective") for name, c in who.items()},
        }
        runs["comm"]["ucx"] = lambda count: self.ucx.move(to_each, count)[0]
        turns = [(kind, name, run, []) for kind, named in runs.items() for name, run in named.items()]
        counts = [max(1, min(MOST_RUNS, int(TURN_US / min(run(2))))) for _, _, run, _ in turns]
        c_ns = []
        for number_ in range(rounds):
            first = number_ * len(turns) // rounds
            for i in [*range(first, len(turns)), *range(first)]:
                _, _, run, samples = turns[i]
                samples += run(counts[i] + 1)[1:]  # the first one finds what the others have left in the caches
            self.ucx.move(16 * MIB, 1)
            c_ns.append(self.ucx.move(128 * MIB, 1)[1])
        medians = {kind: {name: median(t) for of, name, _, t in turns if of == kind} for kind in runs}
        return medians, median(c_ns)


def timer(contender, what):
    return lambda count: contender.time(what, count)


def bytes_to_each(form, m, n, k):
    """The bytes that a rank sends to each other one."""
    elements = m * k if form.name == "k_gather" else m * n
    return elements // HOSTS * F32_BYTES * (2 if form.name == "all_reduce" else 1)


def columns(names):
    """The titles of the table."""
    bound = ["T_gemm", "T_comm", "c ns/B", "T_lb_cpu"]
    return ["Gbit/s", "form", "MxNxK", *bound, *names, "T_lb_cpu / T", *(f"{name} / T" for name in names[1:])]


def row(rate, form, size, medians, c_ns):
    (gemm_by, gemm), (comm_by, comm) = (min(medians[kind].items(), key=lambda one: one[1]) for kind in ("gemm", "comm"))
    moved = 2 * (HOSTS - 1) * bytes_to_each(form, *size)
    lower = bounds.lower_cpu_us(gemm, comm, c_ns, moved)
    t, *others = medians["t"].values()
    cells = [rate, form.name, "x".join(map(str, size)), f"{ms(gemm)} {gemm_by.split()[0]}", f"{ms(comm)} {comm_by}"]
    cells += [f"{c_ns:.2f}", *map(ms, (lower, t, *others)), *(number(us / t) for us in (lower, *others))]
    return cells


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--binaries", type=pathlib.Path, default=ROOT / "build-bench/bin")
    parser.add_argument("--rate", default="2,4", help="Gbit/s each way")
    parser.add_argument("--algorithm", default="auto,serial", help="of agmm; the ratios are those of the first one")
    parser.add_argument("--form", default=",".join(form.name for form in FORMS))
    parser.add_argument("--shape", action="append", metavar="MxNxK", help="in place of three for each form")
    parser.add_argument("--rounds", type=int, default=5, help="turns of each")
    arguments = parser.parse_args()
    about = machine()
    print(f"{about['cpu']}, agmm {about['agmm']}, load {about['load']:.2f}; {HOSTS} hosts of one core each; medians, in ms")
    with Hosts(HOSTS) as hosts, tempfile.TemporaryDirectory() as folder:
        bench = Bench(hosts, pathlib.Path(folder), arguments.binaries, arguments.algorithm.split(","))
        try:
            titles = columns(bench.names)
            print(f"| {' | '.join(titles)} |\n|{'---|' * len(titles)}")
            for form in FORMS:
                if form.name not in arguments.form.split(","):
                    continue
                given = [tuple(map(int, text.split("x"))) for text in arguments.shape or []]
                for size in given or form.shapes:
                    rates = arguments.rate.split(",")
                    hosts.limit(float(rates[0]) * 1e9)
                    bench.all[0].measure()
                    bench.set_product(form, *size)
                    for rate in rates:
                        hosts.limit(float(rate) * 1e9)
                        bench.all[0].measure()
                        figures = bench.measure(form, *size, arguments.rounds)
                        print(f"| {' | '.join(row(rate, form, size, *figures))} |", flush=True)
        finally:
            bench.close()
    print(f"every contender's C was right; load {os.getloadavg()[0]:.2f}")


if __name__ == "__main__":
    try:
        main()
    except (CannotMakeHosts, ContenderFailed) as error:
        sys.exit(f"sums.py: {error}")
