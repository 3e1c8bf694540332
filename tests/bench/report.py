#!/usr/bin/env python3
"""Prints the table of a run from its JSON:  report.py bench.json

The JSON, schema agmm.bench.v1 (times in microseconds, rates in bits a second):
    machine      {cpu, cores, kernel, load, packages{name: version}, agmm}
    seed, rounds, hosts, devices, share_cores
    missing      {contender: why it did not run}
    left_out[]   cases that were not measured, each with the reason
    cases[]      rate_bits, name, m, n, k, hosts
                 samples_us{contender: [T]}     every measured run in order, on the slowest rank
                 gemm_us{who: [t]}, gather_us{who: [t]}, c_ns[]
                 launch_us{contender: [t]}      of agmm: from the first begin of a rank to the last one
                 unfused[]                      the contenders that gather and then multiply, once
                 notes{contender: what it chose}
                 figures                        computed from the above by bounds.py
                 in_a_row                       the same for several products in a row, with the time of a product;
                                                if one takes less than 5 ms: {products, samples_us, gemm_us, launch_us,
                                                figures}
"""

import json
import sys
import textwrap
from statistics import median

import bounds

WIDTH = 110


def ms(us):
    return f"{us / 1000:.{3 if us < 9_995 else 2 if us < 99_950 else 1}f}"


def number(value, text="{:.2f}"):
    return "-" if value is None else text.format(value)


def percent(value):
    return number(value if value is None else 100 * value, "{:.1f}")


def machine_lines(run):
    machine = run["machine"]
    yield f"{machine['cpu']}, {machine['cores']} cores, Linux {machine['kernel']}"
    yield ", ".join(
        f"{name} {version}" for name, version in machine["packages"].items()
    ) + f", agmm {machine['agmm']}"
    cores = "which share cores: compare, do not conclude" if run["share_cores"] else "one core each"
    devices = f"{run['devices']} devices of agmm each; " if run["devices"] > 1 else ""
    yield f"{run['hosts']} hosts, {cores}; {devices}tbf burst 256kb both ways; seed {run['seed']}; {run['rounds']} rounds"
    yield from busy_lines(run)
    for name, why in run["missing"].items():
        yield f"without {name}: {why}"


def busy_lines(run):
    load = run["machine"]["load"]
    if load > 0.5:
        yield f"the machine was busy when this began (load {load:.2f}): no figures; it slows those that poll (mpi) and the"
        yield "bounds more than agmm. NOTES.md says how to go ahead of the rest of the machine."


def case_lines(case):
    f = case["figures"]
    shard = ""
    if case["m"] % case["hosts"] == 0 and case["n"] % case["hosts"] == 0:
        shard = f" (m_shard {case['m'] // case['hosts']}, n_shard {case['n'] // case['hosts']})"
    yield f"{case['name']}: M {case['m']} K {case['k']} N {case['n']}{shard} bf16, {case['rate_bits'] / 1e9:g} Gbit/s each way"
    yield f"  {'B' if bounds.gathers_b(case['m'], case['n'], case['k'], case['hosts']) else 'A'} is gathered"
    yield (
        f"  T_gemm {ms(f['t_gemm_us'])} ms ({f['t_gemm_by']})   T_ag {ms(f['t_ag_us'])} ms ({f['t_ag_by']}; "
        f"bytes / link rate {ms(f['link_us'])})   c {f['c_ns']:.3f} ns/B"
    )
    yield (
        f"  T_lb {ms(f['t_lb_us'])} ms   T_lb_cpu {ms(f['t_lb_cpu_us'])} ms   "
        f"T_unfused {ms(f['t_unfused_us'])} ms ({f['t_unfused_by']})"
    )
    yield from contender_lines(f, case["notes"])
    if "in_a_row" in case:
        f = case["in_a_row"]["figures"]
        yield (
            f"  {case['in_a_row']['products']} in a row, each: T_gemm {ms(f['t_gemm_us'])} ms   T_ag {ms(f['t_ag_us'])} ms "
            f"({f['t_ag_by']})   T_lb_cpu {ms(f['t_lb_cpu_us'])} ms   T_unfused {ms(f['t_unfused_us'])} ms"
        )
        yield from contender_lines(f, {})


def contender_lines(f, notes):
    yield f"  {'contender':22}{'T':>10}{'+-':>7}{'R':>8}{'R_cpu':>8}{'E':>8}{'speedup':>9}" + "  chosen" * bool(notes)
    yield f"  {'':22}{'ms':>10}{'%':>7}"
    for name, one in f["contenders"].items():
        line = (
            f"  {name:22}{ms(one['t_us']):>10}{percent(one['spread']):>7}{number(one['r']):>8}{number(one['r_cpu']):>8}"
            f"{number(one['e']):>8}{number(one['speedup']):>9}  {notes.get(name, '')}"
        )
        yield line.rstrip()[:WIDTH]
    against = f["versus"]
    if against:
        yield (
            f"  {against['agmm']} / {against['other']} = {against['ratio']:.2f}"
            + (f", agmm auto / it = {against['auto_ratio']:.2f}" if against["auto_ratio"] else "")
        )


def summary_lines(run):
    """One line for each case, alone and in a row, then the cases that were left out."""
    yield from summary_table("each alone", [(case, case["figures"]) for case in run["cases"]])
    rows = [(case, case["in_a_row"]["figures"]) for case in run["cases"] if "in_a_row" in case]
    if rows:
        yield ""
        yield from summary_table("in a row, where one takes less than 5 ms", rows)
    for name in run["left_out"]:
        yield f"left out: {name}"
    yield from busy_lines(run)


def summary_table(title, cases):
    cases = [(case, f) for case, f in cases if f["versus"]]
    if not cases:
        return
    yield title
    yield f"{'':28}{'link':>6}{'T_lb_cpu':>10}  {'best agmm':16}{'T':>9}{'R_cpu':>7}  {'best other':21}{'T':>8}"
    yield f"{'':28}{'Gbit':>6}{'ms':>10}  {'':16}{'ms':>9}{'':7}  {'':21}{'ms':>8}"
    for case, f in cases:
        against = f["versus"]
        ours, other = f["contenders"][against["agmm"]], f["contenders"][against["other"]]
        yield (
            f"{case['name'][:27]:28}{case['rate_bits'] / 1e9:>6g}{ms(f['t_lb_cpu_us']):>10}  {against['agmm'][:15]:16}"
            f"{ms(ours['t_us']):>9}{ours['r_cpu']:>7.2f}  {against['other'][:20]:21}{ms(other['t_us']):>8}"
        )
    yield from missed_lines(cases)
    ratios = [f["versus"]["ratio"] for _, f in cases]
    yield (
        f"T of the best agmm / T of the best other: median {median(ratios):.2f}, worst {max(ratios):.2f} (goal: 0.90, 1.00), "
        f"over {len(ratios)} cases"
    )
    r_cpu = [f["contenders"][f["versus"]["agmm"]]["r_cpu"] for _, f in cases]
    yield f"R_cpu of the best agmm: median {median(r_cpu):.2f}, worst {min(r_cpu):.2f} (goal: 0.92)"


def missed_lines(cases):
    """The cases in which another contender is faster than agmm, by what limits agmm."""
    missed = {}
    for case, f in cases:
        ours = f["contenders"][f["versus"]["agmm"]]
        if f["versus"]["ratio"] > 1:
            late = f", the launch {ms(ours['launch_us'])} of {ms(ours['t_us'])} ms" if ours["limited_by"] == "launch" else ""
            name = f"{case['name']} at {case['rate_bits'] / 1e9:g} Gbit/s"
            missed.setdefault(ours["limited_by"], []).append(f"{name} ({f['versus']['ratio']:.2f}{late})")
    for limit, names in missed.items():
        why = "what limits them is not known" if limit == "unknown" else f"limited by the {limit}"
        line = f"slower than the best other, {why}: {'; '.join(names)}"
        yield from textwrap.wrap(line, WIDTH, subsequent_indent="  ")


def text(run):
    lines = list(machine_lines(run))
    for case in run["cases"]:
        lines += ["", *case_lines(case)]
    return "\n".join([*lines, "", *summary_lines(run)]) + "\n"


if __name__ == "__main__":
    with open(sys.argv[1], encoding="utf-8") as file:
        read = json.load(file)
    for each in read["cases"]:
        each["figures"] = bounds.figures(each)
        if "in_a_row" in each:
            each["in_a_row"]["figures"] = bounds.figures({**each, **each["in_a_row"]})
    sys.stdout.write(text(read))
