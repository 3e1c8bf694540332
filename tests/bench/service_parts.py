"""The figures of service_figures.py. Each part is a function that takes Settings and yields Rows."""

import json
import pathlib
import statistics
import subprocess
import tempfile
import time
from typing import NamedTuple, Optional

import shapes
from service_world import ServiceFailed, World, cpu_seconds, status_value

MIB = 1 << 20


class Settings(NamedTuple):
    binaries: pathlib.Path
    idle_seconds: float
    jobs: int
    pipelined_jobs: int
    bytes: int
    rounds: int
    threads: int


class Row(NamedTuple):
    what: str
    against: str
    goal: str
    seen: str
    met: Optional[bool]  # None: there is no goal
    values: dict


def run_json(*command):
    done = subprocess.run([str(word) for word in command], capture_output=True, text=True)
    if done.returncode != 0:
        raise ServiceFailed(f"{pathlib.Path(command[0]).name}: {done.stderr.strip()[-300:]}")
    return json.loads(done.stdout)


def ratio_row(what, against, goal, ratio, detail, values):
    """A ratio that should be `goal` or more."""
    return Row(what, against, f"{goal:g}", f"{ratio:.2f}  {detail}", ratio >= goal, {"ratio": ratio, **values})


def idle(settings):
    with World(settings.binaries, 2) as world:
        yield Row(
            "world of two, start to ready", "-", "1 s", f"{world.ready_s:.2f} s", world.ready_s <= 1, {"s": world.ready_s}
        )
        time.sleep(1)

        def look():
            return [(cpu_seconds(pid), status_value(pid, "voluntary_ctxt_switches")) for pid in world.pids()]

        before = look()
        time.sleep(settings.idle_seconds)
        for node, (b, a) in enumerate(zip(before, look())):
            share = 100 * (a[0] - b[0]) / settings.idle_seconds
            yield Row(f"idle daemon {node}, processor", "a core", "1 %", f"{share:.2f} %", share <= 1, {"percent": share})
            switches = (a[1] - b[1]) / settings.idle_seconds
            yield Row(
                f"idle daemon {node}, voluntary switches",
                "-",
                "20 a s",
                f"{switches:.1f} a second",
                switches < 20,
                {"a_second": switches},
            )


def small_jobs(settings, nodes):
    with World(settings.binaries, nodes) as world:
        return run_json(settings.binaries / "submit_bench", world.tcp[-1], settings.jobs, settings.pipelined_jobs)


def pipelined_row(what, pipelined):
    rate, lost = pipelined["jobs_a_second"], pipelined["lost"]
    seen = f"{rate:.0f} a second, {lost} lost of {pipelined['jobs']}"
    return Row(what, "-", "8000 a s", seen, rate >= 8000 and lost == 0, pipelined)


def submit(settings):
    seen = small_jobs(settings, 2)
    rpc, job, calls, pipelined = seen["rpc_us"], seen["run_us"], seen["submit_wait_us"], seen["pipelined"]
    against = f"bare call {rpc['p50']:.0f} us"
    yield Row(
        "warm 64^3 job, submit to done, median", against, "350 us", f"{job['p50']:.0f} us, {job['p50'] / rpc['p50']:.2f} bare calls", job["p50"] < 350, {**job, "rpc_us": rpc}
    )
    yield Row("the same, p99", f"bare call {rpc['p99']:.0f} us", "2 ms", f"{job['p99']:.0f} us", job["p99"] < 2000, job)
    yield Row("the same as two calls, Submit and Wait", against, "-", f"{calls['p50']:.0f} us, p99 {calls['p99']:.0f}", None, calls)
    yield pipelined_row(f"pipelined 64^3 jobs, {pipelined['in_flight']} in flight, two nodes", pipelined)
    calls = seen["pipelined_calls"]
    yield Row(
        "the same as two calls each",
        "-",
        "-",
        f"{calls['jobs_a_second']:.0f} a second, {calls['lost']} lost of {calls['jobs']}",
        None,
        calls,
    )
    pipelined = small_jobs(settings, 1)["pipelined"]
    yield pipelined_row(f"pipelined 64^3 jobs, {pipelined['in_flight']} in flight, one node", pipelined)


def fill(world, name, rows, cols, sharding, dtype="bf16"):
    world.ctl(
        "tensor", "fill", name, "--shape", f"{rows}x{cols}", "--dtype", dtype, "--sharding", sharding, "--kind", "integers"
    )


def beyond(world):
    """For each daemon: resident bytes outside all classes, bytes in the classes, and resident bytes of free heap."""
    seen = []
    for index, pid in enumerate(world.pids()):
        status = world.ctl("status", node=index)[0]
        devices = status["nodes"][index]["devices"]
        held, packed = (
            sum(device[name] for device in devices for name in classes)
            for classes in (("tensor_bytes", "workspace_bytes"), ("packed_bytes",))
        )
        kept = max(0, int(status["metrics"]["heap_resident_bytes"]) - held)
        seen.append((status_value(pid, "VmRSS") * 1024 - held - packed - kept, held + packed, kept))
    return seen


def memory_row(what, world):
    over, accounted, kept = max(beyond(world))
    return Row(
        what,
        f"{accounted / MIB:.0f} MiB accounted",
        "+ 64 MB",
        f"+ {over / 1e6:.0f} MB" + (f", {kept / 1e6:.0f} MB of heap free again" if kept > 0 else ""),
        over <= 64e6,
        {"beyond_bytes": over, "accounted_bytes": accounted, "kept_bytes": kept},
    )


def memory(settings):
    with World(settings.binaries, 2) as world:
        yield memory_row("memory of a daemon, fresh", world)
        size = 4096
        fill(world, "A", size, size, "[M_x, K]")
        fill(world, "B", size, size, "[K, N_x]")
        for algorithm in ("serial", "ring", "direct"):
            world.ctl("job", "submit", "--bind", "A=A,B=B,C=C", "--algorithm", algorithm, "--repeat", "3", "--wait")
        time.sleep(1.5)  # daemons report their memory to each other within half a second
        yield memory_row("memory of a daemon, after jobs", world)
        world.ctl("tensor", "rm", "A", "B", "C")
        time.sleep(1.5)
        yield memory_row("memory of a daemon, tensors deleted", world)


def job_us(job):
    """The time from the start of a job to its end."""
    fields = [job[name].rstrip("Z").partition(".") for name in ("start_time", "end_time")]
    begin, end = (
        time.mktime(time.strptime(whole, "%Y-%m-%dT%H:%M:%S")) * 1e6 + int(part.ljust(6, "0")[:6]) for whole, _, part in fields
    )
    return end - begin


def repeat(settings):
    epochs, size = 1000, 128
    with World(settings.binaries, 1) as world:
        fill(world, "A", size, size, "[M, K]", "f32")
        fill(world, "B", size, size, "[K, N]", "f32")
        overhead, gemm = [], []
        for i in range(-2, max(9, settings.rounds)):
            job = world.ctl(
                "job", "submit", "--spec", "A[M, K] * B[K, N] -> C[M, N]", "--bind", "A=A,B=B,C=C",
                "--repeat", str(epochs), "--wait",
            )[-1]  # fmt: skip
            if i < 0:
                continue
            gemm.append(job["figures"]["gemm_us"])
            overhead.append(job_us(job) / epochs)
    gemm_us, epoch_us = statistics.median(gemm), statistics.median(overhead)
    yield Row(
        f"--repeat {epochs} of {size}^3 f32, an epoch, one node",
        f"T_gemm {gemm_us:.1f} us",
        "+ 20 us",
        f"+ {epoch_us - gemm_us:.1f} us",
        epoch_us - gemm_us < 20,
        {"epoch_us": overhead, "gemm_us": gemm},
    )


def transfer(settings):
    heap = f"{settings.bytes // MIB + 64}MiB"
    with World(settings.binaries, 1, heap) as world:
        seen = run_json(
            settings.binaries / "transfer_bench",
            world.tcp[0],
            f"unix:{world.sockets[0]}",
            settings.bytes,
            settings.rounds,
        )
        seconds = {what: statistics.median(runs) for what, runs in seen["seconds"].items()}
        files = dict(through_files(settings, world))
    size = f"{settings.bytes / (1 << 30):g} GiB"

    def row(what, mine, other, name, goal):
        rate = [settings.bytes / seconds[key] / 1e9 for key in (mine, other)]
        return ratio_row(
            f"{what} {size}",
            f"{name} {rate[1]:.2f} GB/s",
            goal,
            seconds[other] / seconds[mine],
            f"({rate[0]:.2f} GB/s)",
            {"seconds": seen["seconds"][mine], "against_seconds": seen["seconds"][other]},
        )

    yield row("upload", "upload", "stream_up", "bare stream", 0.9)
    yield row("download", "download", "stream_down", "bare stream", 0.9)
    yield row("write in place", "map_write", "memcpy", "memcpy", 0.8)
    yield row("read in place", "map_read", "memcpy", "memcpy", 0.8)
    cp = f"cp {settings.bytes / files['cp'] / 1e9:.2f} GB/s"
    for what in ("put", "get"):
        rate = settings.bytes / files[what] / 1e9
        yield Row(f"agmmctl tensor {what} {size}", cp, "-", f"{rate:.2f} GB/s", None, {"seconds": files[what]})


def through_files(settings, world):
    """The median seconds of put, get and cp, with files in memory."""
    with tempfile.TemporaryDirectory(dir="/dev/shm") as folder:
        source, copy = pathlib.Path(folder) / "source", pathlib.Path(folder) / "copy"
        with open(source, "wb") as file:
            for _ in range(0, settings.bytes, MIB):
                file.write(b"\1" * MIB)
        rows = source.stat().st_size // 4096
        commands = {
            "put": lambda: world.ctl("tensor", "put", "F", str(source), "--dtype", "f32", "--shape", f"{rows}x1024"),
            "get": lambda: world.ctl("tensor", "get", "F", str(copy), "--raw"),
            "cp": lambda: subprocess.run(["cp", str(source), str(copy)], check=True),
        }
        took = {what: [] for what in commands}
        for _ in range(3):
            for what, command in commands.items():
                begin = time.monotonic()
                command()
                took[what].append(time.monotonic() - begin)
                copy.unlink(missing_ok=True)
    return {what: statistics.median(times) for what, times in took.items()}


def gemm(settings):
    """Compares jobs of one node with plain calls of oneDNN. Each runs in its own process, in turn."""
    suite = {(s.m, s.n, s.k): s.name for s in reversed(shapes.suite(1))}  # sizes that appear twice have the first name
    flags = [word for m, n, k in suite for word in ("--shape", f"M={m},N={n},K={k}")]
    for dtype in ("bf16", "f32"):
        jobs, plain = {sizes: [] for sizes in suite}, {sizes: [] for sizes in suite}
        with World(settings.binaries, 1, "2GiB", settings.threads) as world:
            for _ in range(settings.rounds):
                for one in world.ctl("bench", *flags, "--dtype", dtype, "--algorithm", "auto", "--rounds", "5"):
                    if one["algorithm"] == "auto":
                        jobs[one["m"], one["n"], one["k"]].append(one["time_ms"] / 1e3)
                seen = run_json(
                    settings.binaries / "gemm_bench",
                    *[f"--shape={m}x{n}x{k}" for m, n, k in suite],
                    f"--benchmark_filter=plain/{dtype}/.*/{settings.threads}/",
                    "--benchmark_min_time=0.02",
                    "--benchmark_repetitions=5",
                    "--benchmark_format=json",
                )
                for one in seen["benchmarks"]:
                    if one["run_type"] != "iteration":
                        continue
                    m, n, k = map(int, one["name"].split("/")[2].split("x"))
                    plain[m, n, k].append(2 * m * n * k / one["items_per_second"])
        ratios = {}
        for sizes, name in reversed(suite.items()):
            job_s, plain_s = statistics.median(jobs[sizes]), statistics.median(plain[sizes])
            ratios[name] = plain_s / job_s
            yield ratio_row(
                f"one-node {dtype} {name} / {shapes.DIVISOR}",
                "plain oneDNN",
                1.1,
                ratios[name],
                f"({2e-12 * sizes[0] * sizes[1] * sizes[2] / job_s:.3f} TFLOP/s)",
                {"job_s": jobs[sizes], "plain_s": plain[sizes]},
            )
        middle = statistics.median(ratios.values())
        yield ratio_row(f"one-node {dtype}, median of the suite", "plain oneDNN", 1.1, middle, "", {"ratios": ratios})


def wire(settings):
    """Compares the CPU time of a byte between two transports on loopback with that of the minimal sleeping UCX loop."""
    from contenders import Ucx  # needs numpy

    class Loopback:
        count = 2

        def command(self, host, command):
            return command

    class LoopbackUcx(Ucx):
        settings = {**Ucx.settings, "UCX_NET_DEVICES": "lo"}

    costs, seen, speeds = [], [], []
    with tempfile.TemporaryDirectory() as folder:
        loop = LoopbackUcx(Loopback(), pathlib.Path(folder), settings.binaries)
        try:
            for _ in range(settings.rounds):
                costs.append(loop.move(64 * MIB, 8)[1])
                both = run_json(settings.binaries / "transport_bench", MIB, 512, "--json")["both_ways"]
                seen.append(both["cpu_ns_a_byte"])
                speeds.append(both["mb_s_each_way"])
        finally:
            loop.close()
    # The loop's cost is for a byte sent or received; the bench's is for a byte sent and received.
    mine, minimal = statistics.median(seen) / 2, statistics.median(costs)
    yield Row(
        "core time a byte moved, both ways, 1 MiB",
        f"sleeping loop {minimal:.3f} ns",
        "1.1",
        f"{mine / minimal:.2f}  ({mine:.3f} ns, {statistics.median(speeds):.0f} MB/s each way)",
        mine <= 1.1 * minimal,
        {"ns_a_byte": seen, "loop_ns_a_byte": costs},
    )


def link_row(gbit, burst_bytes, moved_bytes, seconds):
    """The share of the link's rate. Errors: ServiceFailed if the link cannot have carried that much."""
    what, rate = f"daemon to daemon, both ways, 1 MiB, {gbit} Gbit/s", moved_bytes / seconds / 1e6
    share = (moved_bytes - burst_bytes) * 8 / seconds / (gbit * 1e9)
    if share > 1:
        raise ServiceFailed(f"{what}: invalid, because {rate:.0f} MB/s is more than the link carries")
    values = {"seconds": seconds, "bytes": moved_bytes}
    return ratio_row(what, "the link each way", 0.9, share, f"({rate:.0f} MB/s)", values)


def link(settings):
    """Gathers in chunks of 1 MiB over a limited link, in both directions at once. Multiplies next to nothing."""
    from hosts import BURST, CannotMakeHosts, Hosts

    size, shard = 8192, 64 * MIB
    try:
        with Hosts(2) as hosts:
            for gbit in (2, 4):
                hosts.limit(gbit * 1e9)
                with World(settings.binaries, 2, hosts=hosts) as world:
                    fill(world, "A", size, size, "[M_x, K]")
                    fill(world, "B", size, 2, "[K, N_x]")
                    # B is smaller, and the planner would choose to gather it.
                    job = world.ctl(
                        "job", "submit", "--bind", "A=A,B=B,C=C", "--algorithm", "direct", "--split", "N=x",
                        "--chunks", str(shard // MIB), "--repeat", str(settings.rounds + 1), "--wait",
                    )[-1]  # fmt: skip
                moved = sum(path["bytes"] for path in job["figures"]["moved"] if path["path"] == "network")
                yield link_row(gbit, int(BURST[:-2]) * 1024, moved // 2, job["figures"]["time_us"] / 1e6)
    except CannotMakeHosts as error:
        yield Row("daemon to daemon, both ways, 1 MiB", "the link each way", "0.9", f"not run: {error}", None, {})


def new_shapes(settings):
    """Compares 100 jobs at once, ten of them with new shapes, with the same jobs when all plans are known."""
    for devices, size in ((1, 64), (1, 512), (4, 128), (4, 512)):
        with World(settings.binaries, 2, heap="256MiB", devices=devices) as world:
            seen = run_json(
                settings.binaries / "new_shapes_bench", f"unix:{world.sockets[-1]}", size, 2 * settings.rounds
            )
        new, known = seen["new_us"], seen["known_us"]
        ratios = {what: statistics.median(n / k for n, k in zip(new[what], known[what])) for what in ("median", "last")}
        yield Row(
            f"known {size}^3 jobs beside 10 new shapes, 2 x {devices}",
            f"all known {statistics.median(known['median']) / 1e3:.1f} ms",
            "1.5",
            f"{ratios['median']:.2f}, the last {ratios['last']:.2f}",
            max(ratios.values()) <= 1.5,
            {"ratios": ratios, "new_us": new, "known_us": known},
        )


def measuring_row(settings, what, world):
    """Compares jobs that are submitted while the world measures itself with those of an idle world."""
    seen = run_json(settings.binaries / "measuring_bench", f"unix:{world.sockets[-1]}", 40 * settings.rounds)
    usual, jobs = seen["usual_us"], sorted(seen["measuring_us"])
    middle, p99 = statistics.median(usual), jobs[int(0.99 * (len(jobs) - 1))]
    return Row(
        f"64^3 job during a measurement, {what}, p99",
        f"usual {middle / 1e3:.2f}, p99 {sorted(usual)[int(0.99 * (len(usual) - 1))] / 1e3:.1f} ms",
        "+ 20 ms",
        f"+ {(p99 - middle) / 1e3:.1f} ms, median + {(statistics.median(jobs) - middle) / 1e3:.1f}, "
        f"worst + {(jobs[-1] - middle) / 1e3:.1f}",
        p99 - middle <= 20e3,
        {"usual_us": usual, "measuring_us": jobs},
    )


def measuring(settings):
    from hosts import CannotMakeHosts, Hosts

    with World(settings.binaries, 2) as world:
        yield measuring_row(settings, "loopback", world)
    try:
        with Hosts(2) as hosts:
            hosts.limit(1e9)
            with World(settings.binaries, 2, hosts=hosts) as world:
                yield measuring_row(settings, "1 Gbit/s", world)
    except CannotMakeHosts as error:
        yield Row("64^3 job during a measurement, 1 Gbit/s", "-", "+ 20 ms", f"not run: {error}", None, {})


# Core time of a choice, by ranks; of a simulation of 8 ranks with 8 chunks each. In ms.
CHOICE_GOALS, SIMULATION_GOAL = {"8": 50, "64": 1000}, 5


def plan(settings):
    seen = run_json(settings.binaries / "plan_bench", "--benchmark_min_time=0.1", "--benchmark_format=json")
    times = {one["name"]: one for one in seen["benchmarks"]}
    for what, algorithm, size in (name.split("/") for name in times):
        ranks, chunks = size.split("x")
        one = times[f"{what}/{algorithm}/{size}"]
        if what == "choose":
            goal, took = CHOICE_GOALS.get(ranks), one["cpu_time"]
            yield Row(
                f"choice for {ranks} ranks: core time",
                f"{one['simulated']:.0f} simulated",
                f"{goal} ms" if goal else "-",
                f"{took:.2f} ms",
                took <= goal if goal else None,
                {"ms": {what: took}, "simulated": one["simulated"]},
            )
        if what != "plan":
            continue
        ms = {of: times[f"{of}/{algorithm}/{size}"]["cpu_time"] for of in ("plan", "verify", "hash", "simulate")}
        has_goal = size == "8x8"
        yield Row(
            f"{algorithm}, {ranks} ranks, chunks {chunks}: core time",
            f"{one['steps']:.0f} steps",
            f"sim. {SIMULATION_GOAL} ms" if has_goal else "-",
            ", ".join(f"{of} {took:.2f}" for of, took in ms.items()) + " ms",
            ms["simulate"] <= SIMULATION_GOAL if has_goal else None,
            {"ms": ms, "steps": one["steps"]},
        )


PARTS = (idle, submit, repeat, memory, transfer, gemm, wire, link, new_shapes, measuring, plan)
