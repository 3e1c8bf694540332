"""Describes the machine of a measurement."""

import os
import pathlib
import platform
import subprocess

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent


def has_tiles():
    """True if the processor has the instructions that kernels/cpu/tiles.h requires."""
    return " amx_bf16 " in pathlib.Path("/proc/cpuinfo").read_text()


def machine(torch_version=None):
    packages = {}
    for name in ("libucx0", "libdnnl2", "openmpi-bin"):
        done = subprocess.run(["dpkg-query", "-W", "-f", "${Version}", name], capture_output=True, text=True)
        packages[name] = done.stdout or "?"
    if torch_version:
        packages["torch"] = torch_version
    model = [
        line.partition(":")[2].strip()
        for line in pathlib.Path("/proc/cpuinfo").read_text().splitlines()
        if line.startswith("model name")
    ]
    commit = subprocess.run(
        ["git", "-C", str(ROOT), "describe", "--always", "--dirty"], capture_output=True, text=True
    )
    return {
        "cpu": model[0] if model else platform.machine(),
        "cores": len(os.sched_getaffinity(0)),
        "kernel": platform.release(),
        "load": os.getloadavg()[0],
        "packages": packages,
        "agmm": commit.stdout.strip() or "?",
    }
