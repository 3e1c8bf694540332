#!/usr/bin/env python3
"""Figures of the service on this machine: memory and processor time of an idle daemon, the time a world of two
takes to become ready, and a warm 64x64x64 job on two daemons from submit to done.

    tests/bench/service_figures.py [--build build] [--idle-seconds 10] [--jobs 2000]

Prints a table with the bound beside each figure. Asserts nothing: the machine may be busy.
"""
import argparse
import json
import os
import pathlib
import socket
import subprocess
import sys
import tempfile
import time


def free_ports(count):
    sockets = [socket.socket() for _ in range(count)]
    for s in sockets:
        s.bind(("127.0.0.1", 0))
    ports = [s.getsockname()[1] for s in sockets]
    for s in sockets:
        s.close()
    return ports


def config(node, ports, directory):
    nodes = "\n".join(f'  node {{ name: "{name}" address: "127.0.0.1:{port}" devices: 1 }}'
                      for name, port in zip("ab", ports))
    path = directory / f"{node}.txtpb"
    path.write_text(f'world {{\n  cluster: "figures"\n{nodes}\n}}\n'
                    f'local {{ node: "{node}" device {{ kind: "cpu" threads: 1 heap: "1GiB" }} }}\n')
    return path


def cpu_seconds(pid):
    fields = pathlib.Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def status_value(pid, key):
    total = 0
    paths = [pathlib.Path(f"/proc/{pid}/status")]
    if key == "voluntary_ctxt_switches":  # of every thread, not only the first
        paths = list(pathlib.Path(f"/proc/{pid}/task").glob("*/status"))
    for path in paths:
        for line in path.read_text().splitlines():
            if line.startswith(key + ":"):
                total += int(line.split()[1])
    return total


def wait_ready(ctl, endpoint, deadline_s=20):
    """Polls until the world is ready; returns the moment it was first seen ready."""
    end = time.monotonic() + deadline_s
    while time.monotonic() < end:
        done = subprocess.run([ctl, "--endpoint", endpoint, "--json", "status"], capture_output=True, text=True)
        if done.returncode == 0 and json.loads(done.stdout)["ready"]:
            return time.monotonic()
    sys.exit(f"world not ready within {deadline_s} s")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--build", default="build")
    parser.add_argument("--idle-seconds", type=float, default=10)
    parser.add_argument("--jobs", type=int, default=2000)
    args = parser.parse_args()
    binaries = pathlib.Path(args.build) / "bin"
    ctl = str(binaries / "agmmctl")
    rows = []
    with tempfile.TemporaryDirectory() as scratch:
        directory = pathlib.Path(scratch)
        ports = free_ports(2)
        started = time.monotonic()
        daemons = [subprocess.Popen([str(binaries / "agmmd"), "--config", str(config(node, ports, directory))],
                                    stderr=open(directory / f"{node}.log", "w")) for node in "ab"]
        try:
            endpoint = f"127.0.0.1:{ports[1]}"
            ready = wait_ready(ctl, endpoint)
            rows.append(("world of two, start to ready", f"{ready - started:.2f} s", "1 s"))

            time.sleep(1)
            before = [(cpu_seconds(d.pid), status_value(d.pid, "voluntary_ctxt_switches")) for d in daemons]
            time.sleep(args.idle_seconds)
            after = [(cpu_seconds(d.pid), status_value(d.pid, "voluntary_ctxt_switches")) for d in daemons]
            for name, d, b, a in zip("ab", daemons, before, after):
                rows.append((f"idle daemon {name}, processor",
                             f"{100 * (a[0] - b[0]) / args.idle_seconds:.2f} % of a core", "1 %"))
                rows.append((f"idle daemon {name}, wake-ups",
                             f"{(a[1] - b[1]) / args.idle_seconds:.0f} a second", "-"))
                rows.append((f"idle daemon {name}, resident", f"{status_value(d.pid, 'VmRSS') / 1024:.0f} MB", "100 MB"))

            done = subprocess.run([str(binaries / "submit_bench"), endpoint, str(args.jobs)],
                                  capture_output=True, text=True, check=True)
            figures = json.loads(done.stdout)
            for key in ("rpc_us", "submit_done_us"):
                what = {"rpc_us": "bare call to the sequencer's daemon (the floor)",
                        "submit_done_us": "warm 64x64x64 job, submit to done"}[key]
                rows.append((what, f"median {figures[key]['p50']:.0f} us, p99 {figures[key]['p99']:.0f} us", "-"))
        finally:
            for d in daemons:
                d.terminate()
            for d in daemons:
                try:
                    d.wait(5)
                except subprocess.TimeoutExpired:
                    d.kill()
                    d.wait()
    print(f"machine: {os.cpu_count()} cores, {os.uname().machine}; figures of one run")
    width = max(len(row[0]) for row in rows)
    print(f"{'what':{width}}  {'seen':34}  bound")
    for what, seen, bound in rows:
        print(f"{what:{width}}  {seen:34}  {bound}")


if __name__ == "__main__":
    main()
