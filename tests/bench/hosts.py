"""Hosts for a benchmark on one machine: network namespaces on a bridge, each link limited both ways, a core each.

    with Hosts(2) as hosts:
        hosts.limit(2e9)
        subprocess.Popen(hosts.command(0, ["iperf3", "-s"]))

Everything goes at the end, however it comes; what a killed run has left goes at the beginning of the next.
"""

import fcntl
import os
import pathlib
import signal
import subprocess
import time

NAME = "agmmbench"  # of every namespace and interface that is made here
SUBNET = "10.213.0"
DEVICE = "eth0"  # of every host
BURST = "256kb"  # a larger one lets the first megabytes through unlimited and flatters everyone
LOCK = "/run/agmm-bench.lock"


class CannotMakeHosts(Exception):
    """One line: what is missing and what to do."""


def write_secret(folder):
    """A world's secret; returns its path."""
    path = folder / "secret"
    path.touch(mode=0o600)
    path.write_bytes(os.urandom(32))
    return path


def tool(*command, check=True):
    done = subprocess.run(command, capture_output=True, text=True)
    if check and done.returncode != 0:
        raise CannotMakeHosts(f"`{' '.join(command)}` failed: {' '.join(done.stderr.split()) or done.returncode}")
    return done.stdout


class Hosts:
    def __init__(self, count):
        if not 2 <= count <= 4:
            raise CannotMakeHosts(f"--hosts {count} is outside 2 to 4")
        self.count = count
        cores = sorted(os.sched_getaffinity(0))
        self.core = [cores[host % len(cores)] for host in range(count)]
        self.share_cores = count > len(cores)
        self.rate_bits = None

    def __enter__(self):
        if os.geteuid() != 0:
            raise CannotMakeHosts("making network namespaces needs root; run it as root")
        for name in ("ip", "tc", "taskset", "unshare", "setpriv"):
            if not any(
                os.access(f"{folder}/{name}", os.X_OK) for folder in ("/usr/sbin", "/sbin", "/usr/bin", "/bin")
            ):
                raise CannotMakeHosts(f"there is no {name}; run deploy/install-deps.sh --bench")
        self.lock = open(LOCK, "w")
        try:
            fcntl.flock(self.lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise CannotMakeHosts(f"another benchmark holds {LOCK}; wait for its end") from None
        try:
            remove()
            self._make()
            self.limit(1e9)  # says now, and not after the first set-up, when this kernel has no tbf
        except BaseException:
            remove()
            raise
        return self

    def __exit__(self, *_):
        remove()
        self.lock.close()

    def _make(self):
        tool("ip", "link", "add", NAME, "type", "bridge")
        tool("ip", "link", "set", NAME, "up")
        for host in range(self.count):
            space = namespace(host)
            tool("ip", "netns", "add", space)
            tool("ip", "link", "add", f"{NAME}{host}", "type", "veth", "peer", "name", DEVICE, "netns", space)
            tool("ip", "link", "set", f"{NAME}{host}", "master", NAME, "up")
            tool("ip", "-n", space, "address", "add", f"{self.address(host)}/24", "dev", DEVICE)
            tool("ip", "-n", space, "link", "set", DEVICE, "up")
            tool("ip", "-n", space, "link", "set", "lo", "up")

    def address(self, host):
        return f"{SUBNET}.{host + 1}"

    def limit(self, bits_a_second):
        """Every link carries so much, each way; running programs see the change."""
        limit = ("root", "tbf", "rate", f"{int(bits_a_second)}bit", "burst", BURST, "latency", "50ms")
        for host in range(self.count):
            tool("tc", "-n", namespace(host), "qdisc", "replace", "dev", DEVICE, *limit)
            tool("tc", "qdisc", "replace", "dev", f"{NAME}{host}", *limit)
        self.rate_bits = bits_a_second

    def command(self, host, command):
        """`command` on a host: in its network, under its name, on its core, dead with this process."""
        named = 'echo "$0" > /proc/sys/kernel/hostname; exec "$@"'
        return [
            "setpriv",
            "--pdeathsig",
            "KILL",
            "ip",
            "netns",
            "exec",
            namespace(host),
            "unshare",
            "--uts",
            "sh",
            "-c",
            named,
            namespace(host),
            "taskset",
            "-c",
            str(self.core[host]),
            *command,
        ]


def namespace(host):
    return f"{NAME}-{host}"


def remove():
    """Ends what runs on hosts of this name, and removes them."""
    spaces = [
        line.split()[0]
        for line in tool("ip", "netns", "list", check=False).splitlines()
        if line.startswith(NAME + "-")
    ]
    for number, patience_s in ((signal.SIGTERM, 3), (signal.SIGKILL, 3)):
        deadline = time.monotonic() + patience_s
        told = set()
        while time.monotonic() < deadline:
            running = {
                int(pid) for space in spaces for pid in tool("ip", "netns", "pids", space, check=False).split()
            }
            running = {pid for pid in running if not ended(pid)}
            if not running:
                break
            for pid in running - told:
                try:
                    os.kill(pid, number)
                except ProcessLookupError:
                    pass
            told |= running
            time.sleep(0.05)
    for space in spaces:
        tool("ip", "netns", "delete", space, check=False)
    for link in tool("ip", "-br", "link", check=False).splitlines():
        name = link.split()[0].split("@")[0]
        if name.startswith(NAME):
            tool("ip", "link", "delete", name, check=False)


def ended(pid):
    """Gone, or a zombie that its parent will reap."""
    try:
        return pathlib.Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] == "Z"
    except OSError:
        return True
