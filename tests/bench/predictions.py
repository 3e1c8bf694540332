#!/usr/bin/env python3
"""Compares the predicted time of plans with the measured one, and `auto` with every fixed algorithm, in turn, on two
simulated hosts with limited links. The world measures itself once at each rate; nothing is fitted.

    tests/bench/predictions.py [--binaries build-bench/bin] [--rate 2,4] [--form gather,all_reduce] [--devices 2]
                               [--tune 5]

Needs root (network namespaces, see hosts.py) and the programs that tests/bench/run.sh builds. T is a product's time in
a row of some, as the predictions are. With --tune, `agmmctl tune` first measures each product, and `auto` takes the plan
that it has stored. The report ends with:

    error       of the predictions of all plans that ran, predicted / measured - 1: median and worst size
    auto        T of auto / T of the best fixed algorithm, and / T of serial: median, worst, and how many are within 5 %
                (3 %), or within twice the spread of the two
    pairs       of two algorithms in one case whose T differ by more than 15 %: how many were predicted in this order, and
                how many of the others within 1 %, because they are the same plan or a link bounds both
"""

import argparse
import itertools
import json
import os
import pathlib
import sys
import tempfile
from statistics import median
from typing import NamedTuple

import shapes
from contenders import Agmm, ContenderFailed
from hosts import CannotMakeHosts, Hosts
from machine import ROOT, machine
from report import ms

HOSTS = 2
ROW_US, MOST_IN_A_ROW, LEAST_IN_A_ROW = 20_000, 32, 2
RUNS = 2  # of a turn, without its first one
NEAR, NEAR_SERIAL, APART, ALIKE = 1.05, 1.03, 1.15, 1.01

SUMS = ((4096, 128, 256), (4096, 512, 1024), (2048, 1024, 4096), (1024, 3584, 1024), (256, 1024, 1024), (64, 512, 2048))


class Form(NamedTuple):
    name: str
    a: str
    b: str
    c: str
    shapes: tuple  # (M, N, K)

    def spec(self):
        return f"A{self.a} * B{self.b} -> C{self.c}"


def forms():
    gathers = [shapes.parse(text, HOSTS) for text in shapes.BALANCES] + shapes.suite(HOSTS)
    some = tuple((s.m, s.n, s.k) for s in gathers)
    return (
        Form("gather", "[M_x, K]", "[K, N_x]", "[M, N_x]", some),
        Form("k_gather", "[M, K_x]", "[K, N_x]", "[M, N_x]", SUMS),
        Form("gather_b", "[M_x, K]", "[K, N_x]", "[M_x, N]", SUMS),
        Form("reduce_scatter", "[M, K_x]", "[K_x, N]", "[M_x, N]", SUMS),
        Form("all_reduce", "[M, K_x]", "[K_x, N]", "[M, N]", SUMS),
    )


class World(Agmm):
    def set_product(self, form, m, n, k):
        for tensor in self._ctl("tensor", "list")["tensors"]:
            self._ctl("tensor", "rm", f"#{tensor['tensor_id']}")
        integers = ("--kind", "integers", "--seed")
        self._fill("bench.A", m, k, form.a, *integers, str(shapes.SEED_A))
        self._fill("bench.B", k, n, form.b, *integers, str(shapes.SEED_B))
        self.spec = form.spec()

    def tune(self, form, m, n, k, budget_s):
        self._ctl("tune", form.spec(), f"M={m},N={n},K={k}", "--budget", f"{budget_s}s")

    def time(self, algorithm, count, products):
        answer = self.client.call(f"run {algorithm} {count} {products} {self.spec}")[0].split()
        return [float(word) for word in answer[:count]]

    def last_job(self):
        return self._ctl("job", "list", "--limit", "1")["jobs"][0]


def spread(samples):
    """Half of the interquartile range, as a share of the median."""
    ordered = sorted(samples)
    return (ordered[len(ordered) * 3 // 4] - ordered[len(ordered) // 4]) / 2 / median(ordered)


def run_case(world, form, size, rounds):
    """Returns {algorithm: {"samples", "predicted_us", "plan"}}, without the ones that cannot plan this product."""
    world.set_product(form, *size)
    plans = {}
    for algorithm in world.forms.values():
        try:
            world.time(algorithm, 1, 1)
            job = world.last_job()
        except ContenderFailed as error:
            if "cannot" not in str(error) and "needs" not in str(error):
                raise
            continue
        pieces = f"{job['chunks']}x{job['k_chunks']}"
        plans[algorithm] = {
            "samples": [],
            "predicted_us": job["predicted_us"],
            "plan": f"{job['algorithm']} {pieces} {job.get('split', '')}",
            "why": job.get("explanation", ""),
        }
    alone_us = min(min(world.time(algorithm, 2, LEAST_IN_A_ROW)) for algorithm in plans)
    products = max(LEAST_IN_A_ROW, min(MOST_IN_A_ROW, int(ROW_US / alone_us)))
    for turn in range(rounds):
        names = list(plans)
        first = turn * len(names) // rounds
        for algorithm in names[first:] + names[:first]:
            plans[algorithm]["samples"] += world.time(algorithm, RUNS + 1, products)[1:]
    for plan in plans.values():
        plan["t_us"] = median(plan["samples"])
    return plans


def row(rate, form, size, plans):
    auto = plans["auto"]
    best = min((name for name in plans if name != "auto"), key=lambda name: plans[name]["t_us"])
    cells = [rate, form.name, "x".join(map(str, size)), auto["plan"], ms(auto["t_us"]), ms(auto["predicted_us"])]
    cells += [f"{best}: {plans[best]['plan']}", ms(plans[best]["t_us"]), ms(plans["serial"]["t_us"])]
    cells += [f"{auto['t_us'] / plans[name]['t_us']:.2f}" for name in (best, "serial")]
    return cells


def share(good, total):
    return f"{good} of {total} ({100 * good / total:.0f} %)" if total else "none"


def summary(cases):
    lines = []
    for name in dict.fromkeys([*(case["form"] for case in cases), "all"]):
        of = [case["plans"] for case in cases if name in (case["form"], "all")]
        errors = [plan["predicted_us"] / plan["t_us"] - 1 for plans in of for plan in plans.values()]
        best, serial, near, near_serial, right, pairs, ties = [], [], 0, 0, 0, 0, 0
        for plans in of:
            auto, fixed = plans["auto"], {key: plan for key, plan in plans.items() if key != "auto"}
            fastest = min(fixed.values(), key=lambda plan: plan["t_us"])
            for to, ratios, most in ((fastest, best, NEAR), (plans["serial"], serial, NEAR_SERIAL)):
                ratios.append(auto["t_us"] / to["t_us"])
                noise = 1 + 2 * (spread(auto["samples"]) + spread(to["samples"]))
                good = ratios[-1] <= max(most, noise)
                near, near_serial = near + (good and to is fastest and ratios is best), near_serial + (
                    good and ratios is serial
                )
            for one, other in itertools.combinations(fixed.values(), 2):
                slow, fast = (one, other) if one["t_us"] > other["t_us"] else (other, one)
                if slow["t_us"] > APART * fast["t_us"]:
                    ratio = slow["predicted_us"] / fast["predicted_us"]
                    pairs, right, ties = pairs + 1, right + (ratio > 1), ties + (1 / ALIKE <= ratio <= 1)
        sizes = [abs(error) for error in errors]
        lines.append(
            f"{name}: {len(of)} cases; error {100 * median(sizes):.0f} % median, {100 * max(sizes):.0f} % worst "
            f"({100 * median(errors):+.0f} %), {share(sum(size <= 0.4 for size in sizes), len(sizes))} within 40 %; "
            f"auto / best {median(best):.2f} median, {max(best):.2f} worst, {share(near, len(of))} good; "
            f"auto / serial {median(serial):.2f} median, {max(serial):.2f} worst, {share(near_serial, len(of))} good; "
            f"pairs {share(right, pairs)} right, {ties} predicted alike"
        )
    return lines


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--binaries", type=pathlib.Path, default=ROOT / "build-bench/bin")
    parser.add_argument("--rate", default="2,4", help="Gbit/s each way")
    parser.add_argument("--form", default=",".join(form.name for form in forms()))
    parser.add_argument("--shape", action="append", metavar="MxNxK", help="in place of those of each form")
    parser.add_argument("--rounds", type=int, default=5, help="turns of each")
    parser.add_argument("--devices", type=int, default=1, help="of each host, on its one core")
    parser.add_argument("--tune", type=int, metavar="SECONDS", help="tune each product for this long before it runs")
    parser.add_argument("--out", type=pathlib.Path, help="a JSON file for all samples")
    arguments = parser.parse_args()
    about, cases = machine(), []
    print(
        f"{about['cpu']}, agmm {about['agmm']}, load {about['load']:.2f}; {HOSTS} hosts of one core and "
        f"{arguments.devices} CPU device{'s' * (arguments.devices > 1)} each; medians, in ms"
    )
    with Hosts(HOSTS) as hosts, tempfile.TemporaryDirectory() as folder:
        world = World(hosts, pathlib.Path(folder), arguments.binaries, devices=arguments.devices)
        world.forms["agmm auto"] = "auto"
        try:
            titles = ["Gbit/s", "form", "MxNxK", "auto takes", "T", "predicted", "best", "T", "serial", "/ best", "/ serial"]
            print(f"| {' | '.join(titles)} |\n|{'---|' * len(titles)}")
            given = [tuple(map(int, text.split("x"))) for text in arguments.shape or []]
            for rate in arguments.rate.split(","):
                hosts.limit(float(rate) * 1e9)
                measured = world.measure()
                for form in forms():
                    if form.name not in arguments.form.split(","):
                        continue
                    for size in given or form.shapes:
                        if arguments.tune:
                            world.tune(form, *size, arguments.tune)
                        plans = run_case(world, form, size, arguments.rounds)
                        cases.append({"rate": rate, "form": form.name, "size": size, "plans": plans, "world": measured})
                        print(f"| {' | '.join(row(rate, form, size, plans))} |", flush=True)
        finally:
            world.close()
            if arguments.out:
                arguments.out.write_text(json.dumps({"machine": about, "cases": cases}, indent=1) + "\n")
    print("\n" + "\n".join(summary(cases)) + f"\nload at the end {os.getloadavg()[0]:.2f}")


if __name__ == "__main__":
    try:
        main()
    except (CannotMakeHosts, ContenderFailed) as error:
        sys.exit(f"predictions.py: {error}")
