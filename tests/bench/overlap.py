#!/usr/bin/env python3
"""Draws docs/overlap.svg from the traces of two jobs: one product on two hosts, with the gather first, and overlapped.

    tests/bench/overlap.py [--binaries build-bench/bin] [--rate 2gbit] [--out docs/overlap.svg]

Needs root (network namespaces, see hosts.py) and built agmmd and agmmctl. The product is that of the README's
first row: A [4096, 4096] sharded over rows, B [4096, 2048] over columns, bf16, one core a host.
"""

import argparse
import json
import pathlib
import statistics
import sys
import tempfile

from contenders import Agmm, ContenderFailed
from hosts import CannotMakeHosts, Hosts
from machine import ROOT, machine
from shapes import Shape

SHAPE = Shape("overlap", 4096, 2048, 4096)
ROUNDS = 9
COLORS = {"transfer": "#d9822b", "multiply": "#1f5fbf"}
LEFT, WIDTH, ROW, GAP = 150, 640, 24, 6


def spans(trace, rank):
    """The steps that arrive at `rank` or run on it, as (what, start ms, end ms)."""
    for event in trace["traceEvents"]:
        if event["ph"] != "X" or event["dur"] <= 0:
            continue
        begin, end = event["ts"] / 1000, (event["ts"] + event["dur"]) / 1000
        here = event["args"]["rank"] == rank
        if event["cat"] == "multiply" and here:
            yield "multiply", begin, end
        # The receiver's link is busy while another rank sends.
        if event["cat"] == "transfer" and not here and event["name"].startswith("send"):
            yield "transfer", begin, end


def panel(trace, title, top, scale):
    """The lines of one job's panel, and the millisecond of its end."""
    out = [f'<text x="0" y="{top + 14}" font-weight="bold">{title}</text>']
    ranks = sorted({e["args"]["rank"] for e in trace["traceEvents"] if e["ph"] == "X"})
    end = max(stop for rank in ranks for _, _, stop in spans(trace, rank))
    y = top + 24
    for rank in ranks:
        for what, label in (("transfer", "network"), ("multiply", "arithmetic")):
            out.append(f'<text x="{LEFT - 10}" y="{y + 16}" text-anchor="end">host {rank}, {label}</text>')
            out.append(f'<rect x="{LEFT}" y="{y}" width="{WIDTH}" height="{ROW}" fill="#f4f4f4"/>')
            for kind, begin, stop in spans(trace, rank):
                if kind == what:
                    out.append(
                        f'<rect x="{LEFT + begin * scale:.1f}" y="{y}" width="{max(0.8, (stop - begin) * scale - 0.6):.1f}" '
                        f'height="{ROW}" fill="{COLORS[what]}"/>'
                    )
            y += ROW + 2
        y += GAP
    x = LEFT + end * scale
    out.append(f'<line x1="{x:.1f}" y1="{top + 18}" x2="{x:.1f}" y2="{y}" stroke="#222" stroke-width="1.5"/>')
    out.append(f'<text x="{x + 5:.1f}" y="{y - GAP - 6}" font-weight="bold">{end:.0f} ms</text>')
    return out, y


def svg(serial, fused, algorithm, caption):
    longest = max(e["ts"] + e["dur"] for trace in (serial, fused) for e in trace["traceEvents"] if e["ph"] == "X")
    scale = (WIDTH - 60) / (longest / 1000)
    first, y = panel(serial, "gather, then multiply (serial)", 6, scale)
    second, y = panel(fused, f"overlapped ({algorithm})", y + 14, scale)
    width, height = LEFT + WIDTH + 10, y + 26
    return "\n".join(
        [
            f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height}" viewBox="-8 0 {width + 8} {height}" '
            'font-family="sans-serif" font-size="13">',
            f'<rect x="-8" width="{width + 8}" height="{height}" fill="white"/>',
            *first,
            *second,
            f'<text x="0" y="{height - 8}" fill="#555" font-size="12">{caption}</text>',
            "</svg>",
            "",
        ]
    )


def median_trace(agmm, algorithm):
    """The trace of the job of median duration out of ROUNDS, after one that is not counted."""
    jobs = [agmm._job(algorithm) for _ in range(ROUNDS + 1)][1:]
    middle = statistics.median_low(job["figures"]["time_us"] for job in jobs)
    job = next(job for job in jobs if job["figures"]["time_us"] == middle)
    file = agmm.folder / f"{algorithm}.json"
    agmm._ctl("job", "trace", str(job["job_id"]), "--out", str(file))
    return json.loads(file.read_text())


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--binaries", type=pathlib.Path, default=ROOT / "build-bench/bin")
    parser.add_argument("--rate", type=float, default=2, help="Gbit/s each way")
    parser.add_argument("--algorithm", default="direct")
    parser.add_argument("--out", type=pathlib.Path, default=ROOT / "docs/overlap.svg")
    arguments = parser.parse_args()
    with Hosts(2) as hosts, tempfile.TemporaryDirectory() as folder:
        hosts.limit(arguments.rate * 1e9)
        agmm = Agmm(hosts, pathlib.Path(folder), arguments.binaries, ["serial", arguments.algorithm], client=False)
        try:
            agmm.set_shape(SHAPE, None)
            traces = [median_trace(agmm, algorithm) for algorithm in ("serial", arguments.algorithm)]
        finally:
            agmm.close()
    what = machine()
    caption = (
        f"A [{SHAPE.m}, {SHAPE.k}] x B [{SHAPE.k}, {SHAPE.n}], bf16, two hosts of one core each ({what['cpu'].split('@')[0].strip()}), "
        f"{arguments.rate:g} Gbit/s each way"
    )
    arguments.out.write_text(svg(*traces, arguments.algorithm, caption))
    print(f"wrote {arguments.out}")


if __name__ == "__main__":
    try:
        main()
    except (CannotMakeHosts, ContenderFailed) as error:
        sys.exit(f"overlap.py: {error}")
