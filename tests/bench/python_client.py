#!/opt/agmm/python/bin/python
"""Compares the Python package with the C++ library: puts and gets over the unix socket, and warm 64x64x64 jobs. Compares
copies into and out of a mapping with one between two arrays, and the ways of an array through a product.

    PYTHONPATH=build/python tests/bench/python_client.py [--binaries build/bin] [--rounds 15] [--json FILE]

Build these first, in Release: agmmd client_bench _agmm. Both sides talk to the same daemon and take turns; each round begins
with the other one. The ratio is that of the medians over all rounds. Load slows both sides, small jobs most; the output says
how much there was.
"""

import argparse
import json
import os
import pathlib
import statistics
import subprocess
import sys
import time

import agmm
import numpy as np
from agmm.operands import Pool, Shape

SIZE, COLS = 64, 1024
SPEC = "A[M_x, K] * B[K, N_x] -> C[M, N_x]"
WARM_UP = 1  # rounds that do not count


class Cpp:
    """The library, in a process of its own."""

    def __init__(self, binaries, endpoint, size):
        command = [str(binaries / "client_bench"), endpoint, str(size)]
        self._process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)

    def seconds(self, what, count):
        self._process.stdin.write(f"run {count}\n" if what == "run" else f"{what}\n")
        self._process.stdin.flush()
        line = self._process.stdout.readline()
        if not line:
            raise SystemExit("python_client: client_bench has ended")
        return json.loads(line)

    def close(self):
        self._process.stdin.close()
        self._process.wait()


class Python:
    """The package, in this process."""

    def __init__(self, client, size):
        ones = np.ones((SIZE, SIZE), np.float32)
        client.put("A", ones, "[M_x, K]")
        client.put("B", ones, "[K, N_x]")
        data = np.ones((size // COLS // 4, COLS), np.float32)
        self._calls = {
            "put": lambda: client.put("X", data, "[M_x, N]"),
            "get": lambda: client.get("X", out=data),
            "run": lambda: client.run(SPEC, "A", "B", "C"),
        }

    def seconds(self, what, count):
        call, seconds = self._calls[what], []
        for _ in range(count if what == "run" else 1):
            begin = time.perf_counter()
            call()
            seconds.append(time.perf_counter() - begin)
        return seconds


def measure(sides, rounds, jobs):
    """Returns {what: {side: [seconds]}}."""
    seen = {what: {side: [] for side in sides} for what in ("put", "get", "run")}
    for round in range(rounds + WARM_UP):
        order = list(sides) if round % 2 else list(reversed(sides))
        for what in seen:
            for side in order:
                seconds = sides[side].seconds(what, jobs)
                if round >= WARM_UP:
                    seen[what][side] += seconds
    return seen


def measure_mapping(client, size, rounds):
    """Returns {what: [seconds]}: copies of the same bytes between arrays, and between an array and a mapped tensor."""
    array = np.ones((size // COLS // 4, COLS), np.float32)
    other = np.empty_like(array)
    client.create("M", array.shape, "[M, N]", ranks=[0])
    seen = {"copy": [], "write": [], "read": []}

    def copy(what, into, source):
        begin = time.perf_counter()
        np.copyto(into, source)
        seen[what].append(time.perf_counter() - begin)

    for _ in range(rounds + WARM_UP):
        copy("copy", other, array)
        with client.map("M", writable=True) as mapping:
            copy("write", mapping.array, array)
            mapping.commit()
        with client.map("M") as mapping:
            copy("read", other, mapping.array)
    return {what: seconds[WARM_UP:] for what, seconds in seen.items()}


def report_mapping(seen):
    """Prints the figures, and returns them."""
    medians = {what: statistics.median(seconds) for what, seconds in seen.items()}
    ratios = {what: medians["copy"] / medians[what] for what in ("write", "read")}
    print(f"map: copy {medians['copy'] * 1e6:.0f} us; ratio of the rates, write {ratios['write']:.2f}, read {ratios['read']:.2f}")
    return {"copy_us": medians["copy"] * 1e6, **ratios}


PRODUCTS = (8, 48, 40), (128, 384, 1536), (1024, 1024, 1024)  # rows of X, K, N
LAYER = "X[M_x, K] * W[K, N_x] -> Y[M, N_x]"


def measure_products(client, rounds):
    """Returns {(M, K, N): {way: [seconds]}}: an array X becomes an array Y, with a resident weight. "job" is the job alone."""
    seen = {}
    for m, k, n in PRODUCTS:
        weight = client.put("W", np.ones((k, n), np.float32), "[K, N_x]")
        x, y = np.ones((m, k), np.float32), np.empty((m, n), np.float32)
        client.put("X", x, "[M_x, K]")
        client.run(LAYER, "X", weight, "Y")

        def put_and_get():
            client.put("X", x, "[M_x, K]")
            client.run(LAYER, "X", weight, "Y")
            client.get("Y", out=y)

        def map_in_each_call():
            with client.map("X", writable=True) as mapping:
                mapping.write(x)
                mapping.commit()
            client.run(LAYER, "X", weight, "Y")
            with client.map("Y") as mapping:
                mapping.read(y)

        pool = Pool.of(client)
        shape = Shape(LAYER, m, k, weight.dtype, n, weight.mesh, weight.ranks)
        ways = {"job": lambda: client.run(LAYER, "X", weight, "Y"), "put and get": put_and_get, "map in each call": map_in_each_call,
                "renew": lambda: pool.multiply(shape, weight, x, y)}
        seen[m, k, n] = {way: [] for way in ways}
        for round in range(10 * rounds + WARM_UP):
            for way in list(ways) if round % 2 else reversed(ways):
                begin = time.perf_counter()
                ways[way]()
                if round >= WARM_UP:
                    seen[m, k, n][way].append(time.perf_counter() - begin)
        for name in "XWY":
            client.delete(name)
    return seen


def report_products(seen):
    """Prints the figures, and returns them."""
    figures = {}
    for shape, ways in seen.items():
        name = " x ".join(map(str, shape))
        figures[name] = {way: statistics.median(seconds) * 1e6 for way, seconds in ways.items()}
        print(f"product {name}: " + ", ".join(f"{way} {us:.0f} us" for way, us in figures[name].items()))
    return figures


def report(seen, size):
    """Prints the figures, and returns them."""
    figures = {"bytes": size, "load": os.getloadavg()[0], "cores": os.cpu_count()}
    for what, sides in seen.items():
        medians = {side: statistics.median(seconds) for side, seconds in sides.items()}
        ratio = medians["python"] / medians["cpp"] if what == "run" else medians["cpp"] / medians["python"]
        goal = "at most 1.3" if what == "run" else "at least 0.9"
        kind = "time" if what == "run" else "rate"
        shown = ", ".join(f"{side} {median * 1e6:.0f} us" for side, median in medians.items())
        print(f"{what}: {shown}; ratio of the {kind}s {ratio:.2f} (goal: {goal})")
        figures[what] = {"ratio": ratio, **{f"{side}_us": median * 1e6 for side, median in medians.items()}}
    print(f"load {figures['load']:.2f} on {figures['cores']} cores")
    return figures


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--binaries", type=pathlib.Path, default=pathlib.Path("build/bin"))
    parser.add_argument("--bytes", type=int, default=64 << 20)
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--jobs", type=int, default=300, help="of each side in a round")
    parser.add_argument("--devices", type=int, default=2)
    parser.add_argument("--json", type=pathlib.Path)
    arguments = parser.parse_args()
    local = agmm.local(devices=arguments.devices, heap=(64 << 20) + 4 * arguments.bytes, threads=1)
    with local as client:
        sides = {"cpp": Cpp(arguments.binaries, local.endpoint, arguments.bytes), "python": Python(client, arguments.bytes)}
        figures = report(measure(sides, arguments.rounds, arguments.jobs), arguments.bytes)
        sides["cpp"].close()
        figures["map"] = report_mapping(measure_mapping(client, arguments.bytes, arguments.rounds))
        figures["products"] = report_products(measure_products(client, arguments.rounds))
    if arguments.json:
        arguments.json.write_text(json.dumps(figures, indent=1) + "\n")


if __name__ == "__main__":
    sys.exit(main())
