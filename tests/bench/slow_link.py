#!/usr/bin/env python3
"""Shows that a world of three hosts sees that one of its links is slow, and chooses other plans for it.

    tests/bench/slow_link.py [--binaries build-bench/bin] [--rate 4,2,1]

Needs root (network namespaces, see hosts.py) and the programs that tests/bench/run.sh builds. The links of two hosts
have 10 Gbit/s, and the third one's has each rate in turn. For each rate the report has the figures of `agmmctl topo` for
the paths of the third host, and the plan that `auto` takes for each product, with its predicted time. Measurements
differ, so a second one at 10 Gbit/s shows how many plans change without a slow link. T is left out, because the hosts
may share cores.
"""

import argparse
import pathlib
import sys
import tempfile

from contenders import ContenderFailed
from hosts import CannotMakeHosts, Hosts
from machine import ROOT, machine
from predictions import World, forms
from report import ms

HOSTS, SLOW = 3, 2
FULL_GBIT = 10
# Rows, columns and depths that three ranks divide: many rows, a long sum, and a small product.
SHAPES = ((6144, 768, 1536), (1536, 768, 6144), (384, 1536, 768))
GB_OF_GBIT = 1 / 8


def measured_rates(world):
    """Has the world measure itself once; returns the rates of the paths from and to the slow host, in GB/s."""
    paths = world.measure_once()["paths"]
    return [path["one_way_gb_per_s"] for path in paths if SLOW in (path.get("from_node", 0), path.get("to_node", 0))]


def chosen_plans(world):
    """Returns {(form, shape): (plan, predicted us)} of `auto`."""
    plans = {}
    for form in forms():
        for size in SHAPES:
            world.set_product(form, *size)
            world.time("auto", 1, 1)
            job = world.last_job()
            plan = f"{job['algorithm']} {job['chunks']}x{job['k_chunks']} {job.get('split', '')}".strip()
            plans[form.name, size] = plan, job["predicted_us"]
    return plans


def changed(full, plans):
    count = sum(plan[0] != full[key][0] for key, plan in plans.items())
    return f"{count} of {len(plans)} plans changed"


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--binaries", type=pathlib.Path, default=ROOT / "build-bench/bin")
    parser.add_argument("--rate", default="4,2,1", help="Gbit/s each way of the third host's link")
    arguments = parser.parse_args()
    about = machine()
    print(f"{about['cpu']}, agmm {about['agmm']}, load {about['load']:.2f}; {HOSTS} hosts, times in ms")
    with Hosts(HOSTS) as hosts, tempfile.TemporaryDirectory() as folder:
        if hosts.share_cores:
            print("hosts share cores, so links from 4 Gbit/s on are not always full")
        world = World(hosts, pathlib.Path(folder), arguments.binaries)
        world.forms["agmm auto"] = "auto"
        try:
            hosts.limit(FULL_GBIT * 1e9)
            rates = measured_rates(world)
            print(f"\n{FULL_GBIT} Gbit/s: {min(rates):.3f} to {max(rates):.3f} GB/s")
            full = chosen_plans(world)
            world.measure_once()
            print(f"{changed(full, chosen_plans(world))} after another measurement")
            for gbit in map(float, arguments.rate.split(",")):
                hosts.limit(gbit * 1e9, only=SLOW)
                rates, true = measured_rates(world), gbit * GB_OF_GBIT
                print(
                    f"\n{gbit:g} Gbit/s ({true:.3f} GB/s): {min(rates):.3f} to {max(rates):.3f} GB/s, "
                    f"{100 * (min(rates) / true - 1):+.0f} to {100 * (max(rates) / true - 1):+.0f} %\n"
                )
                titles = ["form", "MxNxK", f"auto at {FULL_GBIT} Gbit/s", f"auto at {gbit:g} Gbit/s", "predicted"]
                print(f"| {' | '.join(titles)} |\n|{'---|' * len(titles)}")
                plans = chosen_plans(world)
                for (form, size), (plan, predicted_us) in plans.items():
                    cells = [form, "x".join(map(str, size)), full[form, size][0], plan, ms(predicted_us)]
                    print(f"| {' | '.join(cells)} |")
                print(f"\n{changed(full, plans)}", flush=True)
        finally:
            world.close()


if __name__ == "__main__":
    try:
        main()
    except (CannotMakeHosts, ContenderFailed) as error:
        sys.exit(f"slow_link.py: {error}")
