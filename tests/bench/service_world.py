"""A world of daemons on this machine, and the figures of their processes in /proc."""

import json
import os
import pathlib
import socket
import subprocess
import tempfile
import time

from hosts import end_all, write_secret

DEADLINE_S = 30


class ServiceFailed(Exception):
    """One line."""


class World:
    """`nodes` daemons with `devices` each. With `hosts` (hosts.py), each has its own host, else all use loopback."""

    def __init__(self, binaries, nodes, heap="1GiB", threads=1, hosts=None, devices=1):
        self.binaries, self.nodes, self.heap, self.threads, self.hosts = binaries, nodes, heap, threads, hosts
        self.devices = devices

    def __enter__(self):
        self.folder = tempfile.TemporaryDirectory(prefix="agmm-figures.")
        self.held = []
        path = pathlib.Path(self.folder.name)
        ports = [7101] * self.nodes + [7100] if self.hosts else self._hold_ports()
        addresses = [
            f"{self.hosts.address(node) if self.hosts else '127.0.0.1'}:{port}"
            for node, port in enumerate(ports[: self.nodes])
        ]
        self.tcp = addresses
        self.sockets = [str(path / f"{node}.sock") for node in range(self.nodes)]
        listed = "\n".join(
            f'  node {{ name: "n{node}" address: "{address}" devices: {self.devices} }}' for node, address in enumerate(addresses)
        )
        device = f'  device {{ kind: "cpu" threads: {self.threads} heap: "{self.heap}" }}\n'
        secret = write_secret(path)
        self.daemons = []
        started = time.monotonic()
        try:
            for node in range(self.nodes):
                config = path / f"{node}.txtpb"
                config.write_text(
                    f'world {{\n  cluster: "figures"\n{listed}\n  peer_port: {ports[-1]}\n}}\n'
                    f'local {{ node: "n{node}" socket: "{self.sockets[node]}" secret: "{secret}" machines: "none"\n'
                    f"{device * self.devices}}}\n"
                )
                command = [str(self.binaries / "agmmd"), "--config", str(config)]
                if self.hosts:
                    command = self.hosts.command(node, command)
                with open(path / f"{node}.log", "w") as log:
                    self.daemons.append(subprocess.Popen(command, stderr=log))
            self._await_ready(started)
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_):
        end_all(self.daemons)
        for one in self.held:
            one.close()
        self.folder.cleanup()

    # Ports of loopback, one for each node and one for the peers, that no other program can get:
    # they are bound, but not listened on.
    def _hold_ports(self):
        self.held = [socket.socket() for _ in range(self.nodes + 1)]
        for one in self.held:
            one.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            one.bind(("127.0.0.1", 0))
        return [one.getsockname()[1] for one in self.held]

    def _await_ready(self, started):
        while time.monotonic() < started + DEADLINE_S:
            done = self._ctl("status")
            if done.returncode == 0 and json.loads(done.stdout)["ready"]:
                self.ready_s = time.monotonic() - started
                return
            time.sleep(0.005)
        raise ServiceFailed(f"the world was not ready within {DEADLINE_S} s")

    # Uses the last node's socket by default, which is not the sequencer's if there are several
    # nodes.
    def _ctl(self, *arguments, node=-1):
        return subprocess.run(
            [str(self.binaries / "agmmctl"), "--endpoint", f"unix:{self.sockets[node]}", "--json", *arguments],
            capture_output=True,
            text=True,
        )

    def ctl(self, *arguments, node=-1):
        """The JSON documents that agmmctl printed."""
        done = self._ctl(*arguments, node=node)
        if done.returncode != 0:
            raise ServiceFailed(f"agmmctl {' '.join(arguments)}: {done.stderr.strip()}")
        return [json.loads(line) for line in done.stdout.splitlines()]

    def pids(self):
        return [daemon.pid for daemon in self.daemons]


def cpu_seconds(pid):
    fields = pathlib.Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def status_value(pid, key):
    """The value of `key` in /proc/PID/status. Context switches are the sum over all threads that still run."""
    paths = [pathlib.Path(f"/proc/{pid}/status")]
    if key == "voluntary_ctxt_switches":
        paths = list(pathlib.Path(f"/proc/{pid}/task").glob("*/status"))
    total = 0
    for path in paths:
        for line in path.read_text().splitlines():
            if line.startswith(key + ":"):
                total += int(line.split()[1])
    return total
