"""The arithmetic of the table. Times are in microseconds; bf16 has 2 bytes.

    T_gemm      the fastest local GEMM of [M, K] x [K, N / P] on all hosts at once, in the time of the slowest host: one
                oneDNN call in bf16, agmm's tiles, or oneDNN in f32 including the conversion of A to f32
    T_ag        the fastest gather by any contender of the run: of A; or, if that moves fewer bytes, of B followed by
                the exchange of C
    T_lb        max(T_gemm, T_ag)
    T_lb_cpu    max(T_ag, T_gemm + c bytes): bytes sent and received by a rank, c from the minimal sleeping UCX loop
    T_unfused   the fastest gather followed by one GEMM, by any contender of the run
    R           T_lb / T              R_cpu    T_lb_cpu / T
    For products in a row, T_ag is the larger of two times: the T_ag of a single product, and the time that the link
                needs for the bytes, of which one burst of tbf in each row is free.
    speedup     T_unfused / T         E        1 - (T - T_gemm) / (T_unfused - T_gemm), if T_unfused > 1.05 T_gemm
    limited by  (of agmm, if another contender is faster) "launch" if the ranks begin so far apart that it is most of what T
                takes beyond T_lb_cpu; near T_lb_cpu its larger term, "link" (T_ag) or "cores"; else "unknown"
T is the median over the rounds of the slowest rank's time.
"""

from statistics import median, quantiles

ELEMENT_BYTES = 2
LEAST_TO_HIDE = 0.05
NEAR = 1.25  # T / T_lb_cpu
BURST_BYTES = 256 << 10  # hosts.py: passes a link at once


def rows_of(m, hosts):
    """The rows of each rank; the first m % hosts ranks have one more."""
    return [m // hosts + (rank < m % hosts) for rank in range(hosts)]


def gathers_b(m, n, k, hosts):
    """True if the contenders gather B and exchange C: then the busiest rank receives fewer bytes, or as many and computes
    less, than if it gathered A. T_ag is the gather of the same operand; agmm's `auto` may choose another."""
    rows, cols = rows_of(m, hosts), rows_of(n, hosts)
    by_n = (m - min(rows)) * k * ELEMENT_BYTES, 2 * m * max(cols) * k
    by_m = max((n - c) * k + (m - r) * c for r, c in zip(rows, cols)) * ELEMENT_BYTES, 2 * max(rows) * n * k
    return by_m < by_n


def sent_and_received(m, n, k, hosts):
    """The (sent, received) bytes of each rank: shards to and from each other rank, and blocks of C likewise."""
    rows, cols = rows_of(m, hosts), rows_of(n, hosts)
    if not gathers_b(m, n, k, hosts):
        return [((hosts - 1) * r * k * ELEMENT_BYTES, (m - r) * k * ELEMENT_BYTES) for r in rows]
    return [
        (((hosts - 1) * c * k + r * (n - c)) * ELEMENT_BYTES, ((n - c) * k + (m - r) * c) * ELEMENT_BYTES)
        for r, c in zip(rows, cols)
    ]


def bytes_to_each(m, n, k, hosts):
    """The bytes that the first rank, which has the largest shards, sends to each other rank."""
    rows, cols = rows_of(m, hosts), rows_of(n, hosts)
    elements = cols[0] * k + rows[0] * cols[0] if gathers_b(m, n, k, hosts) else rows[0] * k
    return elements * ELEMENT_BYTES


def bytes_moved(m, n, k, hosts):
    """The bytes sent and received by the rank that moves most."""
    return max(sent + received for sent, received in sent_and_received(m, n, k, hosts))


def link_us(m, n, k, hosts, rate_bits):
    """The time that the busiest link needs for one direction at its full rate."""
    return max(max(both) for both in sent_and_received(m, n, k, hosts)) * 8 / rate_bits * 1e6


def spread(samples):
    """Half of the interquartile range, as a share of the median; None for fewer than three samples."""
    if len(samples) < 3:
        return None
    low, _, high = quantiles(samples, n=4, method="inclusive")
    return (high - low) / 2 / median(samples)


def fastest(samples_by_name):
    """The (name, median) with the least median, or None without samples."""
    medians = {name: median(samples) for name, samples in samples_by_name.items() if samples}
    return min(medians.items(), key=lambda item: item[1]) if medians else None


def lower_cpu_us(gemm, communication, c_ns, moved_bytes):
    """T_lb_cpu."""
    return max(communication, gemm + c_ns * moved_bytes / 1000)


def limited_by(t, launch, gather, lower_cpu):
    if launch > (t - lower_cpu) / 2 > 0:
        return "launch"
    if t > NEAR * lower_cpu:
        return "unknown"
    return "link" if gather >= lower_cpu else "cores"


def figures(case):
    """Computes the figures of a case from its samples. `case` is as report.py describes it, without `figures`."""
    gemm_by, gemm = fastest(case["gemm_us"])
    gather_by, gather = fastest(case["gather_us"])
    sizes = [case[name] for name in ("m", "n", "k", "hosts")]
    link = link_us(*sizes, case["rate_bits"])
    if "products" in case:
        sustained = link - BURST_BYTES * 8 / case["rate_bits"] * 1e6 / case["products"]
        if sustained > gather:
            gather_by, gather = "link", sustained
    unfused_by, unfused = fastest({name: case["samples_us"][name] for name in case["unfused"]})
    c = median(case["c_ns"])
    moved = bytes_moved(*sizes)
    lower = max(gemm, gather)
    lower_cpu = lower_cpu_us(gemm, gather, c, moved)
    contenders = {}
    for name, samples in case["samples_us"].items():
        t = median(samples)
        to_hide = unfused - gemm
        launch = median(case.get("launch_us", {}).get(name) or [0]) / case.get("products", 1)
        contenders[name] = {
            "t_us": t,
            "spread": spread(samples),
            "r": lower / t,
            "r_cpu": lower_cpu / t,
            "speedup": unfused / t,
            "e": 1 - (t - gemm) / to_hide if to_hide > LEAST_TO_HIDE * gemm else None,
            "launch_us": launch,
            "limited_by": limited_by(t, launch, gather, lower_cpu),
        }
    return {
        "t_gemm_us": gemm,
        "t_gemm_by": gemm_by,
        "t_ag_us": gather,
        "t_ag_by": gather_by,
        "c_ns": c,
        "bytes_moved": moved,
        "link_us": link,
        "t_lb_us": lower,
        "t_lb_cpu_us": lower_cpu,
        "t_unfused_us": unfused,
        "t_unfused_by": unfused_by,
        "contenders": contenders,
        "versus": versus(contenders),
    }


def versus(contenders):
    """T of agmm divided by the least T of the others: for agmm's fastest algorithm, and for `auto`."""
    ours = {name: one["t_us"] for name, one in contenders.items() if name.startswith("agmm ")}
    others = {name: one["t_us"] for name, one in contenders.items() if not name.startswith("agmm ")}
    if not ours or not others:
        return None
    best, rival = min(ours, key=ours.get), min(others, key=others.get)
    return {
        "agmm": best,
        "other": rival,
        "ratio": ours[best] / others[rival],
        "auto_ratio": ours["agmm auto"] / others[rival] if "agmm auto" in ours else None,
    }
