"""The contenders. Each of them has:
    forms                       {name in the table: what it runs}
    set_shape(shape, data)      creates the operands and prepares everything that lasts; returns {name: what it chose}
    run(form, count, products)  makes `count` runs of `products` products in a row; returns for each run the time of a
                                product on the slowest rank, in microseconds
    rows(form, rows, products)  overwrites C, runs `products` products in a row, returns these rows of C as bf16 bits
"""

import json
import os
import pathlib
import subprocess
import sys
import time

import numpy

import bounds
from hosts import DEVICE, SUBNET, end_all, write_secret
from ranks import ContenderFailed, Ranks
from shapes import SEED_A, SEED_B, part_of

HERE = pathlib.Path(__file__).resolve().parent
POISON = 77  # exact in bf16; no correct C is full of it
MEASURE_S = 120  # the longest measurement of a world
# The most that are repeated, and the factors within which the rates and the costs of a byte of two agree.
MEASURES, AGREE, AGREE_COST = 8, 1.1, 1.5


class RankContender:
    """A contender whose ranks speak contender_rank.h's lines."""

    def __init__(self, name, hosts, folder):
        self.ranks = Ranks(name, folder / name.replace(" ", "-"), hosts.count)

    def set_shape(self, shape, data):
        self.shape = shape
        gathered = "B" if bounds.gathers_b(shape.m, shape.n, shape.k, self.ranks.size) else "A"
        return self.chosen(self.ranks.call(f"shape {shape.m} {shape.n} {shape.k} {data} {gathered}")[0].split())

    def run(self, form, count, products=1):
        return self.ranks.run(self.forms.get(form, form), count, products)

    def rows(self, form, rows, products):
        file = self.ranks.folder / "rows"
        self.ranks.call(f"rows {self.forms[form]} {products} {file} {' '.join(map(str, rows))}")
        parts = []
        for rank in range(self.ranks.size):
            begin, end = part_of(self.shape.n, self.ranks.size, rank)
            parts.append(numpy.fromfile(f"{file}.{rank}", numpy.uint16).reshape(len(rows), end - begin))
        return numpy.hstack(parts)

    def close(self):
        self.ranks.close()


class Mpi(RankContender):
    forms = {"mpi allgather + gemm": "unfused", "mpi chunks": "chunks"}

    def __init__(self, hosts, folder, binaries, program="mpi_rank"):
        super().__init__("mpi", hosts, folder)
        # mpirun starts the other ranks with this command instead of ssh.
        agent = self.ranks.folder / "agent"
        cases = "\n".join(
            f"{hosts.address(h)}) exec {' '.join(map(quoted, hosts.command(h, ['sh', '-c'])))} \"$*\" ;;"
            for h in range(hosts.count)
        )
        agent.write_text(
            f'#!/bin/sh\nhost=$1; shift\ncase $host in\n{cases}\nesac\necho "no host $host" >&2; exit 1\n'
        )
        agent.chmod(0o755)
        settings = {
            "plm_rsh_agent": agent,
            "pml": "ob1",
            "btl": "tcp,self",
            "btl_tcp_if_include": f"{SUBNET}.0/24",
            "oob_tcp_if_include": f"{SUBNET}.0/24",
            "orte_tmpdir_base": self.ranks.folder,
        }
        if hosts.share_cores:
            settings["mpi_yield_when_idle"] = 1  # a rank that polls would wait for the end of the other's time slice
        command = [
            "mpirun",
            "--allow-run-as-root",
            "--bind-to",
            "none",
            "--host",
            ",".join(f"{hosts.address(h)}:1" for h in range(hosts.count)),
        ]
        for name, value in settings.items():
            command += ["--mca", name, str(value)]
        self.ranks.start(
            hosts.command(0, [*command, str(binaries / program), str(self.ranks.folder)]), {"OMP_NUM_THREADS": "1"}
        )
        self.ranks.ready()

    def chosen(self, words):
        layout, chunk, piece = words
        return {"mpi allgather + gemm": f"B {layout}", "mpi chunks": f"{chunk}-row messages, {piece}-row pieces"}


def quoted(word):
    return "'" + str(word).replace("'", "'\\''") + "'"


class Torch(RankContender):
    forms = {"torch gloo + matmul": "unfused"}

    def __init__(self, hosts, folder, python, program="torch_rank.py"):
        super().__init__("torch", hosts, folder)
        for host in range(hosts.count):
            self.ranks.start(
                hosts.command(host, [python, str(HERE / program), str(self.ranks.folder), str(host), str(hosts.count)]),
                {"GLOO_SOCKET_IFNAME": DEVICE, "OMP_NUM_THREADS": "1"},
            )
        self.version = self.ranks.ready(120)[0].split()[-1]

    def chosen(self, words):
        return {"torch gloo + matmul": f"B {words[0]}"}


def find_torch():
    """Finds a python that has torch. Errors: ContenderFailed, which says where to put one."""
    places = [os.environ.get("AGMM_TORCH_PYTHON"), HERE.parent.parent / "build-bench/torch/bin/python", sys.executable]
    for python in places:
        if python and pathlib.Path(python).exists():
            if subprocess.run([python, "-c", "import numpy, torch.distributed"], capture_output=True).returncode == 0:
                return str(python)
    raise ContenderFailed("no python with torch and numpy in $AGMM_TORCH_PYTHON or build-bench/torch")


class Ucx:
    """The minimal sleeping UCX loop: measures an all-gather and the CPU time of a byte, and multiplies nothing."""

    settings = {
        "UCX_TLS": "tcp,self",
        "UCX_NET_DEVICES": DEVICE,
        "UCX_TCP_PUT_ENABLE": "n",
        "UCX_TCP_TX_SEG_SIZE": "64k",
        "UCX_RNDV_THRESH": "64k",
        "UCX_HANDLE_ERRORS": "none",
    }

    def __init__(self, hosts, folder, binaries):
        self.hosts = hosts
        self.ranks = Ranks("ucx loop", folder / "ucx", hosts.count)
        for host in range(hosts.count):
            self.ranks.start(
                hosts.command(host, [str(binaries / "ucx_rank"), str(self.ranks.folder), str(host)]), self.settings
            )
        self.ranks.ready()
        self.ranks.call("peers " + " ".join(self.ranks.call("address")))

    def move(self, bytes_to_each, count):
        """Returns the microseconds of each run on the slowest rank, and the mean CPU nanoseconds for a byte moved."""
        answers = [
            [float(word) for word in answer.split()] for answer in self.ranks.call(f"move {bytes_to_each} {count}")
        ]
        return [max(times) for times in zip(*(a[:-1] for a in answers))], sum(a[-1] for a in answers) / len(answers)

    def close(self):
        self.ranks.close()


def measurements_agree(one, other, share_a_core=False):
    """True if two measured worlds have about the same rates of links and products, the same costs of a byte that moves,
    and the same bursts. For devices that share a core, only links between nodes and the cost of a byte count: what else
    is timed depends on whose turn it is, and a product of less than a turn seems twice as fast."""

    def figures(world):
        machine = world["machine"]
        nodes = [(path.get("from_node", 0), path.get("to_node", 0)) for path in world["paths"]]
        links = [path for path, (start, end) in zip(world["paths"], nodes) if start != end or not share_a_core]
        rates = [path[key] for path in links for key in ("one_way_gb_per_s", "two_way_gb_per_s")]
        costs = [machine["device"]["send_ns_per_byte"]]
        if not share_a_core:
            rates += [rate["gflop_per_s"] for rate in machine["device"]["gemm"]]
            costs.append(machine["between"].get("burst_kb", 0))
        return (rates, AGREE), (costs, AGREE_COST)

    return all(
        len(x) == len(y) and all(a <= most * b and b <= most * a for a, b in zip(x, y))
        for (x, most), (y, _) in zip(figures(one), figures(other))
    )


class WorldIsUnsteady(ContenderFailed):
    """Other programs disturb the measurements of the world."""


class Agmm:
    """Daemons with resident operands, and an application that submits one job after the other (agmm_jobs.cc)."""

    PORT = 7101

    def __init__(self, hosts, folder, binaries, algorithms=None, client=True, devices=1):
        self.ctl, self.folder = str(binaries / "agmmctl"), folder / "agmm"
        self.folder.mkdir()
        self.daemons, self.gather_us, self.launch_us = [], [], {}
        self.share_a_core = devices > 1 or hosts.share_cores
        self.forms = {f"agmm {name}": name for name in algorithms or self._offered()}
        nodes = "\n".join(
            f'  node {{ name: "h{h}" address: "{hosts.address(h)}:{self.PORT}" devices: {devices} }}'
            for h in range(hosts.count)
        )
        device = '  device { kind: "cpu" threads: 1 heap: "2GiB" }\n'
        secret = write_secret(self.folder)
        for host in range(hosts.count):
            config = self.folder / f"{host}.txtpb"
            config.write_text(
                f'world {{\n  cluster: "bench"\n{nodes}\n}}\n'
                f'local {{\n  node: "h{host}"\n  socket: "{self._socket(host)}"\n  secret: "{secret}"\n  machines: "none"\n'
                f"{device * devices}}}\n"
            )
            log = open(self.folder / f"{host}.log", "wb")
            self.daemons.append(
                subprocess.Popen(
                    hosts.command(host, [str(binaries / "agmmd"), "--config", str(config)]),
                    stdin=subprocess.DEVNULL,
                    stdout=log,
                    stderr=log,
                )
            )
        end = time.monotonic() + 30
        while not self._status().get("ready"):
            gone = [d.returncode for d in self.daemons if d.poll() is not None]
            if gone or time.monotonic() > end:
                raise ContenderFailed(
                    f"agmm: a daemon ended with code {gone[0]}" if gone else "agmm: the world is not ready after 30 s"
                )
            time.sleep(0.1)
        self.client = Ranks("agmm", self.folder / "client", 1) if client else None
        if not client:
            return
        self.client.start([str(binaries / "agmm_jobs"), f"unix:{self._socket(0)}", str(self.client.folder)])
        self.client.ready()

    def _offered(self):
        """Asks agmmctl for the names of its algorithms."""
        said = subprocess.run(
            [self.ctl, "plan", "--shape", "M=8,N=8,K=8", "--mesh", "x=2", "--algorithm", "?"],
            capture_output=True,
            text=True,
        ).stderr
        _, found, names = said.partition("; use ")
        if not found:
            raise ContenderFailed(f"agmm does not list its algorithms: {said.strip()}")
        # Each host is a node, and peer needs all ranks on one node.
        return [name for name in names.strip().replace(" or ", ", ").split(", ") if name != "peer"]

    def _socket(self, host):
        return self.folder / f"{host}.sock"

    def _ctl(self, *arguments):
        done = subprocess.run(
            [self.ctl, "--endpoint", f"unix:{self._socket(0)}", "--json", *arguments],
            capture_output=True,
            text=True,
            timeout=180,
        )
        if done.returncode != 0:
            raise ContenderFailed(f"agmm: agmmctl {' '.join(arguments[:2])}: {done.stderr.strip()}")
        return json.loads(done.stdout)

    def _status(self):
        try:
            return self._ctl("status")
        except ContenderFailed:
            return {}

    def measure(self):
        """Has the world measure itself until two measurements agree, and returns the machine: other programs disturb
        a single one."""
        last = self.measure_once()
        for _ in range(MEASURES):
            again = self.measure_once()
            if measurements_agree(last, again, self.share_a_core):
                return again
            last = again
        raise WorldIsUnsteady(f"agmm: no two measurements in a row of {MEASURES + 1} agree; wait until the machine is idle")

    def measure_once(self):
        version = self._ctl("topo")["world"]["machine"].get("version", 0)
        self._ctl("topo", "--measure")
        end = time.monotonic() + MEASURE_S
        while True:
            world = self._ctl("topo")["world"]
            if int(world["machine"].get("version", 0)) > int(version) and "measure_time" in world:
                return world
            if time.monotonic() > end:
                raise ContenderFailed(f"agmm: the world did not measure itself within {MEASURE_S} s")
            time.sleep(0.2)

    def _fill(self, name, rows, cols, sharding, *kind, dtype="bf16"):
        self._ctl(
            "tensor", "fill", name, "--shape", f"{rows}x{cols}", "--dtype", dtype, "--sharding", sharding, *kind
        )

    def _job(self, algorithm, products=1):
        bind = "A=bench.A,B=bench.B,C=bench.C"
        return self._ctl(
            "job", "submit", "--bind", bind, "--algorithm", algorithm, "--repeat", str(products), "--wait"
        )

    def set_shape(self, shape, data):
        self.shape = shape
        for tensor in self._ctl("tensor", "list")["tensors"]:
            self._ctl("tensor", "rm", f"#{tensor['tensor_id']}")
        self._fill("bench.A", shape.m, shape.k, "[M_x, K]", "--kind", "integers", "--seed", str(SEED_A))
        self._fill("bench.B", shape.k, shape.n, "[K, N_x]", "--kind", "integers", "--seed", str(SEED_B))
        self._poison()
        self.gather_us, self.launch_us = [], {}
        jobs = {form: self._job(algorithm) for form, algorithm in self.forms.items()}
        return {
            form: f"{job['algorithm']}, {job['chunks']} chunk{'s' * (job['chunks'] != 1)} a shard"
            for form, job in jobs.items()
        }

    def _poison(self):
        self._fill("bench.C", self.shape.m, self.shape.n, "[M, N_x]", "--kind", "constant", "--value", str(POISON))

    def run(self, form, count, products=1):
        answer = [float(word) for word in self.client.call(f"run {self.forms[form]} {count} {products}")[0].split()]
        self.launch_us.setdefault(products, {}).setdefault(form, []).extend(answer[2 * count + 1 :])
        if products == 1:
            # The first one finds the others' caches.
            self.gather_us += [us for us in answer[count + 1 : 2 * count] if us]
        return answer[:count]

    def rows(self, form, rows, products):
        self._poison()
        self._job(self.forms[form], products)
        file = self.folder / "C.raw"
        self._ctl("tensor", "get", "bench.C", str(file), "--raw")
        c = numpy.memmap(file, numpy.uint16, "r", shape=(self.shape.m, self.shape.n))
        return numpy.array(c[rows])

    def close(self):
        if self.client:
            self.client.close()
        end_all(self.daemons)
