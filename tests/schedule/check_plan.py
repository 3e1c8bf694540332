#!/usr/bin/env python3
"""Checks random plans of `agmmctl plan --json` with a second, independent implementation of the meaning of a
plan (plan_model.py), and checks that it refuses plans from which a wait, a signal or a step was removed.

    check_plan.py AGMMCTL [--seed N] [--plans N] [--mutants N]
"""
import argparse
import json
import random
import subprocess
import sys

from plan_model import Plan, Wrong, check, demand

SPECS = [
    # Gathers of A, of B, along K, of both; C that moves; replicas; axes in another order.
    ("A[M_x, K] * B[K, N_x] -> C[M, N_x]", "x=4"),
    ("A[M_x, K] * B[K, N_x] -> C[M_x, N]", "x=4"),
    ("A[M, K_x] * B[K, N] -> C[M, N]", "x=3"),
    ("A[M, K_x] * B[K, N_x] -> C[M, N_x]", "x=4"),
    ("A[M, K_x] * B[K_x, N] -> C[M, N]", "x=3"),
    ("A[M, K_x] * B[K_x, N] -> C[M_x, N]", "x=4"),
    ("A[M_x, K_y] * B[K_y, N_x] -> C[M_x, N_y]", "x=2,y=2"),
    ("A[M_x, K] * B[K_x, N] -> C[M_x, N]", "x=3"),
    ("A[M_x, K] * B[K, N] -> C[M, N]", "x=4"),
    ("A[M_xy, K] * B[K, N] -> C[M_y, N]", "x=2,y=3"),
    ("A[M_xy, K] * B[K, N_y] -> C[M_x, N_y]", "x=2,y=2"),
    ("A[M_yx, K] * B[K, N_yx] -> C[M, N_yx]", "x=2,y=4"),
    ("A[M_x, K_y] * B[K_x, N_y] -> C[M_x, N_y]", "x=2,y=2"),
    ("A[M_xyz, K] * B[K, N_z] -> C[M_y, N_z]", "x=2,y=2,z=2"),
    ("A[M_x, K] * B[K, N_x] -> C[M, N_x]", "x=16"),
    ("A[M_xy, K] * B[K, N_y] -> C[M_x, N_y]", "x=4,y=4"),
    # Sums that are open in an input, sums that stay open, and collectives.
    ("A[M, K]{U_x} * B[K, N] -> C[M_x, N]", "x=4"),
    ("A[M_y, K]{U_x} * B[K, N_x] -> C[M, N_x]", "x=2,y=2"),
    ("A[M, K_y] * B[K_y, N]{U_x} -> C[M, N]", "x=2,y=2"),
    ("A[M, K_x] * B[K_x, N] -> C[M, N]{U_x}", "x=3"),
    ("A[M_y, K_x] * B[K_x, N] -> C[M, N_y]{U_x}", "x=2,y=2"),
    ("A[M, K_xy] * B[K_xy, N] -> C[M, N]{U_x}", "x=2,y=3"),
    ("A[M_x, N] -> B[M, N]", "x=4"),
    ("A[M, N]{U_x} -> B[M, N_x]", "x=4"),
    ("A[M, N]{U_x} -> B[M, N]", "x=3"),
    ("A[M_x, N] -> B[M, N_x]", "x=4"),
    ("A[M_x, N]{U_y} -> B[M, N_y]", "x=2,y=3"),
    ("A[M, N]{U_xy} -> B[M_y, N]{U_x}", "x=2,y=2"),
    ("A[M_xy, N] -> B[M_yx, N]", "x=2,y=3"),
]
SHAPES = ["M=11,N=9,K=7", "M=5,N=40,K=33", "M=2,N=3,K=70"]
ALGORITHMS = ["auto", "serial", "ring", "bidirectional_ring", "split_ring", "direct", "hierarchical",
              "torus", "peer", "hierarchical_peer"]


def parts_of(document):
    """The parts that a mutant can lack: (rank, step, "waits" or "signals" or None for the whole step, index)."""
    for rank, steps in enumerate(ranks["steps"] for ranks in document["ranks"]):
        for s, step in enumerate(steps):
            for key in ("waits", "signals"):
                for i in range(len(step[key])):
                    yield rank, s, key, i
            yield rank, s, None, 0


def without(document, part):
    rank, s, key, i = part
    changed = json.loads(json.dumps(document))
    steps = changed["ranks"][rank]["steps"]
    if key:
        del steps[s][key][i]
        return changed
    del steps[s]
    for other in steps:
        carrier = other.get("carrier", -1)
        if carrier >= s:
            other["carrier"] = -1 if carrier == s else carrier - 1
    return changed


def draw(agmmctl, rng):
    """Draws options that have a plan. Returns the options as text, and the plan's document."""
    while True:
        spec, mesh = rng.choice(SPECS)
        options = {"--spec": spec + rng.choice(["", ":f32", ":bf16"]), "--mesh": mesh, "--shape": rng.choice(SHAPES),
                   "--dtype": rng.choice(["f32", "bf16"]), "--nodes": str(rng.choice([1, 2, 3, 4])),
                   "--algorithm": rng.choice(ALGORITHMS), "--chunks": str(rng.choice([1, 3])),
                   "--k-chunks": str(rng.choice([1, 3]))}
        if rng.random() < 0.3:
            options["--partials"] = rng.choice(["bf16", "f16"])
        if rng.random() < 0.3:
            options["--workspace-shards"] = "2"
        elif rng.random() < 0.3:
            options["--send"] = "carried"
        if "*" not in spec:
            options["--shape"] = options["--shape"].rsplit(",", 1)[0]
        axes = mesh.replace("=", ",").split(",")[::2]
        if "*" in spec and rng.random() < 0.7:
            cuts = [f"{dim}={''.join(chosen)}" for dim in "MNK"
                    if (chosen := [axis for axis in axes if rng.random() < 0.5])]
            options["--split"] = ",".join(cuts) if cuts else "none"
        words = [word for option in options.items() for word in option]
        ran = subprocess.run([agmmctl, "plan", "--json", *words], capture_output=True, text=True, timeout=60)
        if ran.returncode == 0:
            return " ".join(words), json.loads(ran.stdout)
        # Two options that exclude each other, an axis that cuts twice, a mesh that nodes do not divide.
        demand(ran.returncode == 2, words, "->", ran.returncode, ran.stderr)


def main():
    arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    arguments.add_argument("agmmctl")
    arguments.add_argument("--seed", type=int, default=1)
    arguments.add_argument("--plans", type=int, default=120)
    arguments.add_argument("--mutants", type=int, default=3, help="of each plan")
    options = arguments.parse_args()
    rng = random.Random(options.seed)
    print(f"seed {options.seed}")
    refused = steps = 0
    for number in range(options.plans):
        words, document = draw(options.agmmctl, rng)
        steps += sum(len(rank["steps"]) for rank in document["ranks"])
        try:
            check(Plan(document), number)
        except Wrong as wrong:
            sys.exit(f"check_plan.py: agmmctl plan {words}\nverified, but wrong here: {wrong}")
        parts = list(parts_of(document))
        for part in rng.sample(parts, min(options.mutants, len(parts))):
            try:
                check(Plan(without(document, part)), number)
            except Wrong:
                refused += 1
            else:
                sys.exit(f"check_plan.py: agmmctl plan {words}\nkeeps {part}, without which it is right, too")
    print(f"{options.plans} plans of {steps} steps are right, their {refused} mutants wrong")
    if refused == 0:
        sys.exit("check_plan.py: no mutant was refused, so this check checks nothing")


if __name__ == "__main__":
    main()
