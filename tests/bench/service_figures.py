#!/usr/bin/python3
"""Measures on this machine the figures that have goals and that run.sh does not measure: those of a daemon, its
transport and its jobs. Prints for each the measured value, what it is compared with, and if it meets the goal.

    tests/bench/service_figures.py [--build build] [--only idle,submit] [--bytes 1073741824] [--json FILE]

Build these first, in Release: agmmd agmmctl submit_bench new_shapes_bench measuring_bench transfer_bench
gemm_bench plan_bench transport_bench ucx_rank.
Parts: {parts}. `link` and one row of `measuring` need root.
Larger ratios are better, except in `new_shapes`: 0.5 means twice as slow as what it is compared with.
A missed goal is not an error, because the machine may be busy. The JSON, schema agmm.service_figures.v1:
    machine   as in report.py
    rows[]    what, against, goal, seen as in the table; met: true, false, or null where there is no goal; values, by part
"""
import argparse
import json
import pathlib
import sys

HERE = pathlib.Path(__file__).resolve().parent
sys.path.insert(0, str(HERE))

from machine import machine  # noqa: E402
from ranks import ContenderFailed  # noqa: E402
from service_parts import PARTS, Row, Settings  # noqa: E402
from service_world import ServiceFailed  # noqa: E402

WIDTHS = (46, 24, 9, 40)
NAMES = [part.__name__ for part in PARTS]


def parsed():
    parser = argparse.ArgumentParser(
        description=__doc__.format(parts=", ".join(NAMES)), formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--build", default="build")
    parser.add_argument("--only", default=",".join(NAMES), help="parts, with commas (default: all)")
    parser.add_argument("--idle-seconds", type=float, default=10)
    parser.add_argument("--jobs", type=int, default=2000, help="one after the other")
    parser.add_argument("--pipelined-jobs", type=int, default=20000)
    parser.add_argument("--bytes", type=int, default=1 << 30, help="to upload and download; whole MiB")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--threads", type=int, default=1, help="of a one-node job and of the plain call")
    parser.add_argument("--json", help="a file for the figures with their samples")
    args = parser.parse_args()
    unknown = set(args.only.split(",")) - set(NAMES)
    if unknown:
        parser.error(f"--only {', '.join(sorted(unknown))}: the parts are {', '.join(NAMES)}")
    if args.bytes < 1 << 20 or args.bytes % (1 << 20):
        parser.error(f"--bytes {args.bytes} is not whole MiB")
    return args


def line(*cells):
    return "  ".join(f"{cell:{width}}" for cell, width in zip(cells, WIDTHS)).rstrip()


def verdict(row):
    return {True: "met", False: "MISSED", None: ""}[row.met]


def main():
    args = parsed()
    settings = Settings(
        pathlib.Path(args.build).resolve() / "bin",
        args.idle_seconds,
        args.jobs,
        args.pipelined_jobs,
        args.bytes,
        args.rounds,
        args.threads,
    )
    here = machine()
    print(f"{here['cpu']}, {here['cores']} cores, Linux {here['kernel']}, agmm {here['agmm']}, load {here['load']:.2f}")
    if here["load"] > 0.5:
        print("the machine was busy when this began: no figures")
    print(line("what", "against", "goal", "seen") + "\n")
    rows, failed = [], 0
    for part in PARTS:
        if part.__name__ not in args.only.split(","):
            continue
        try:
            for row in part(settings):
                rows.append(row)
                print(line(row.what, row.against, row.goal, row.seen) + f"  {verdict(row)}".rstrip(), flush=True)
        except (ServiceFailed, ContenderFailed) as error:
            failed += 1
            rows.append(Row(part.__name__, "-", "-", f"failed: {error}", None, {}))
            print(line(part.__name__, "-", "-", f"failed: {error}"), flush=True)
    goals = [row.met for row in rows if row.met is not None]
    print(f"\n{sum(goals)} of {len(goals)} goals met" + (f"; {failed} parts failed" if failed else ""))
    if args.json:
        document = {"schema": "agmm.service_figures.v1", "machine": here, "rows": [row._asdict() for row in rows]}
        pathlib.Path(args.json).write_text(json.dumps(document, indent=1) + "\n")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
