"""Hosts for a benchmark on one machine: network namespaces on a bridge, each with a core of its own and a link that is
limited in both directions.

    with Hosts(2) as hosts:
        hosts.limit(2e9)
        subprocess.Popen(hosts.command(0, ["iperf3", "-s"]))

The hosts are removed at the end, also after an error. What a killed run has left is removed when the next one begins.
"""

import fcntl
import os
import pathlib
import signal
import subprocess
import time

NAME = "agmmbench"  # prefix of all namespaces and interfaces
SUBNET = "10.213.0"
DEVICE = "eth0"  # name of the network interface in every host
BURST = "256kb"  # a larger burst would not limit the first megabytes, and all results would be too good
LOCK = "/run/agmm-bench.lock"


class CannotMakeHosts(Exception):
    """One line: what is missing and what to do."""


def end_all(processes):
    """Asks these processes to end, and kills those that have not done so within 5 s."""
    for process in processes:
        process.terminate()
    for process in processes:
        try:
            process.wait(5)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def write_secret(folder):
    """Writes the secret of a world and returns its path."""
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
            self.limit(1e9)  # fails now, and not after the first set-up, if this kernel has no tbf
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

    def limit(self, bits_a_second, only=None):
        """Sets the rate of every link in each direction, or of the link of host `only`. Takes effect for running
        programs, too."""
        limit = ("root", "tbf", "rate", f"{int(bits_a_second)}bit", "burst", BURST, "latency", "50ms")
        for host in range(self.count) if only is None else [only]:
            tool("tc", "-n", namespace(host), "qdisc", "replace", "dev", DEVICE, *limit)
            tool("tc", "qdisc", "replace", "dev", f"{NAME}{host}", *limit)
        if only is None:
            self.rate_bits = bits_a_second

    def command(self, host, command):
        """The command line that runs `command` on a host: in its network, with its name, on its core. It is killed
        when this process ends."""
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
    """Ends the processes on all hosts, also those of an earlier run, and removes the hosts."""
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
    """True if the process no longer exists, or is a zombie."""
    try:
        return pathlib.Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] == "Z"
    except OSError:
        return True
