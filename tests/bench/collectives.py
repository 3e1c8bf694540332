#!/usr/bin/env python3
"""Compares the collectives of agmm with those of MPI, in turn, on two simulated hosts with limited links.

    tests/bench/collectives.py [--binaries build-bench/bin] [--rate 2,4] [--bytes 49152,1048576,16777216]

Needs root (network namespaces, see hosts.py) and the programs that tests/bench/run.sh builds. Elements are f32.
bound: the bytes that a rank sends at the rate of its link, without any header.
"""

import argparse
import pathlib
import statistics
import sys
import tempfile

from contenders import Agmm, ContenderFailed, Mpi
from hosts import CannotMakeHosts, Hosts
from machine import ROOT, machine

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
    print("| Gbit/s | collective | bytes | bound | agmm | MPI | bound / agmm | MPI / agmm |")
    print("|---|---|---|---|---|---|---|---|")
    with Hosts(2) as hosts, tempfile.TemporaryDirectory() as folder:
        agmm = Agmm(hosts, pathlib.Path(folder), arguments.binaries, ["auto"], client=False)
        mpi = Mpi(hosts, pathlib.Path(folder), arguments.binaries, "mpi_collectives")
        try:
            for rate in arguments.rate.split(","):
                hosts.limit(float(rate) * 1e9)
                for name in COLLECTIVES:
                    for size in sizes:
                        ours, theirs = [], []
                        for _ in range(arguments.rounds):
                            row = agmm_times(agmm, name, size)
                            ours.append(row["time_ms"])
                            bytes_ = row["size_bytes"]
                            # As many as agmm's epochs, because a link sends its first bytes faster.
                            runs = len(row["runs_ms"])
                            theirs.append(statistics.median(mpi.ranks.run(f"{name} {bytes_}", runs, "")) / 1000)
                        bound = row["sent_bytes"] * 8 / (float(rate) * 1e9) * 1000
                        t, m = statistics.median(ours), statistics.median(theirs)
                        print(
                            f"| {rate} | {name} | {bytes_} | {bound:.3f} | {t:.3f} | {m:.3f} | {bound / t:.2f} | {m / t:.2f} |",
                            flush=True,
                        )
        finally:
            mpi.close()
            agmm.close()


if __name__ == "__main__":
    try:
        main()
    except (CannotMakeHosts, ContenderFailed) as error:
        sys.exit(f"collectives.py: {error}")
