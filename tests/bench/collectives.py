#!/usr/bin/env python3
"""Compares the collectives of agmm with those of MPI and PyTorch (Gloo), in turn, on two simulated hosts with limited
links.

    tests/bench/collectives.py [--binaries build-bench/bin] [--rate 2,4] [--bytes 49152,1048576,16777216]

Needs root (network namespaces, see hosts.py) and the programs that tests/bench/run.sh builds. Gloo is left out without
torch (AGMM_TORCH_PYTHON, see NOTES.md). Elements are f32.
bound: the bytes that a rank sends at the rate of its link, without any header.
"""

import argparse
import pathlib
import statistics
import sys
import tempfile

from contenders import Agmm, ContenderFailed, Mpi, Torch, find_torch
from hosts import CannotMakeHosts, Hosts
from machine import ROOT, machine
from report import number

COLLECTIVES = ("all_gather", "reduce_scatter", "all_reduce", "all_to_all")
RUNS = 7  # of a turn, at least


def agmm_times(agmm, name, size):
    """The row of `agmmctl bench` for one collective and size."""
    return agmm._ctl("bench", "--collective", name, "--bytes", str(size), "--dtype", "f32", "--rounds", str(RUNS))


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--binaries", type=pathlib.Path, default=ROOT / "build-bench/bin")
    parser.add_argument("--rate", default="2,4", help="Gbit/s each way")
    parser.add_argument("--bytes", default="49152,1048576,16777216", help="the larger of a rank's two buffers")
    parser.add_argument("--rounds", type=int, default=5, help="turns of each")
    arguments = parser.parse_args()
    sizes = [int(size) for size in arguments.bytes.split(",")]
    print(f"{machine()['cpu']}, two hosts of one core each; medians of {arguments.rounds} turns, in ms")
    print("| Gbit/s | collective | bytes | bound | agmm | MPI | gloo | bound / agmm | MPI / agmm | gloo / agmm |")
    print("|---|---|---|---|---|---|---|---|---|---|")
    with Hosts(2) as hosts, tempfile.TemporaryDirectory() as folder:
        folder = pathlib.Path(folder)
        agmm = Agmm(hosts, folder, arguments.binaries, ["auto"], client=False)
        others = {"MPI": Mpi(hosts, folder, arguments.binaries, "mpi_collectives")}
        try:
            others["gloo"] = Torch(hosts, folder, find_torch(), "torch_collectives.py")
        except ContenderFailed as error:
            print(f"without gloo: {error}", file=sys.stderr)
        try:
            for rate in arguments.rate.split(","):
                hosts.limit(float(rate) * 1e9)
                agmm.measure()
                for name in COLLECTIVES:
                    for size in sizes:
                        print(row(rate, name, agmm, others, size, arguments.rounds), flush=True)
        finally:
            for contender in [*others.values(), agmm]:
                contender.close()


def row(rate, name, agmm, others, size, rounds):
    """Measures one collective and size in turns, and returns a line of the table."""
    ours, theirs = [], {other: [] for other in ("MPI", "gloo")}
    for _ in range(rounds):
        timed = agmm_times(agmm, name, size)
        ours.append(timed["time_ms"])
        bytes_ = timed["size_bytes"]
        # As many as agmm's epochs, because a link sends its first bytes faster.
        runs = len(timed["runs_ms"])
        for other, contender in others.items():
            theirs[other].append(statistics.median(contender.ranks.run(f"{name} {bytes_}", runs, "")) / 1000)
    bound = timed["sent_bytes"] * 8 / (float(rate) * 1e9) * 1000
    t = statistics.median(ours)
    medians = [statistics.median(times) if times else None for times in theirs.values()]
    times = [f"{bound:.3f}", f"{t:.3f}", *(number(m, "{:.3f}") for m in medians)]
    ratios = [f"{bound / t:.2f}", *(number(m and m / t) for m in medians)]
    return f"| {rate} | {name} | {bytes_} | {' | '.join(times + ratios)} |"


if __name__ == "__main__":
    try:
        main()
    except (CannotMakeHosts, ContenderFailed) as error:
        sys.exit(f"collectives.py: {error}")
