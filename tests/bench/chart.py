"""Draws a run as SVG: T_lb_cpu / T of every contender for each case, with one panel for each link rate."""

from html import escape

OURS = ("#1f5fbf", "#5fb0e6", "#2f9e8f", "#7a5fd0", "#0b3c7d", "#39b54a")  # agmm's
OTHERS = ("#d9822b", "#b8442f", "#8a8a2a", "#6b4a2b")
ROW, LABEL, PANEL, GAP, TOP = 22, 200, 340, 36, 86


def place(value):
    """The distance of a value from 0 to 1.1 from the left edge of a panel, in pixels."""
    return min(max(value, 0), 1.1) / 1.1 * PANEL


def svg(run):
    names = []
    for case in run["cases"]:
        names += [name for name in case["figures"]["contenders"] if name not in names]
    color = {}
    for name in names:
        palette = OURS if name.startswith("agmm ") else OTHERS
        color[name] = palette[sum(used in palette for used in color.values()) % len(palette)]
    rates = sorted({case["rate_bits"] for case in run["cases"]})
    labels = list(dict.fromkeys(case["name"] for case in run["cases"]))
    width = LABEL + len(rates) * (PANEL + GAP)
    height = TOP + len(labels) * ROW + 46
    out = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height}" font-family="sans-serif" font-size="12">',
        f'<rect width="{width}" height="{height}" fill="white"/>',
        f'<text x="12" y="20" font-size="14" font-weight="bold">T_lb_cpu / T, the lower bound over what it took: 1 is perfect</text>',
    ]
    x, y = 12, 42
    for name in names:
        if x + 7 * len(name) + 24 > width:
            x, y = 12, y + 18
        out.append(dot(x + 5, y - 4, name, color[name]))
        out.append(f'<text x="{x + 14}" y="{y}">{escape(name)}</text>')
        x += 7 * len(name) + 34
    bottom = TOP + len(labels) * ROW
    for row, label in enumerate(labels):
        if row % 2 == 0:
            out.append(f'<rect x="0" y="{TOP + row * ROW}" width="{width}" height="{ROW}" fill="#f4f4f4"/>')
        out.append(f'<text x="12" y="{TOP + row * ROW + 15}">{escape(label)}</text>')
    for panel, rate in enumerate(rates):
        left = LABEL + panel * (PANEL + GAP)
        out.append(f'<text x="{left}" y="{TOP - 8}" font-weight="bold">{rate / 1e9:g} Gbit/s each way</text>')
        for tick in (0, 0.25, 0.5, 0.75, 1):
            at = left + place(tick)
            out.append(
                f'<line x1="{at:.1f}" y1="{TOP}" x2="{at:.1f}" y2="{bottom}" stroke="{"#444" if tick == 1 else "#ccc"}"/>'
            )
            out.append(f'<text x="{at:.1f}" y="{bottom + 16}" text-anchor="middle">{tick:g}</text>')
        for case in run["cases"]:
            if case["rate_bits"] != rate:
                continue
            middle = TOP + labels.index(case["name"]) * ROW + ROW / 2
            # agmm on top.
            for name, one in sorted(
                case["figures"]["contenders"].items(), key=lambda item: item[0].startswith("agmm")
            ):
                out.append(dot(left + place(one["r_cpu"]), middle, name, color[name], f"{name}: {one['r_cpu']:.2f}"))
    machine = run["machine"]
    out.append(
        f'<text x="12" y="{bottom + 38}" fill="#555">{escape(machine["cpu"])}, {machine["cores"]} cores; {run["hosts"]} hosts; '
        f'agmm {escape(machine["agmm"])}; seed {run["seed"]}</text>'
    )
    return "\n".join([*out, "</svg>", ""])


def dot(x, y, name, color, title=""):
    """A disc for agmm, a square for the others."""
    title = f"<title>{escape(title)}</title>" if title else ""
    if name.startswith("agmm"):
        return f'<circle cx="{x:.1f}" cy="{y:.1f}" r="5" fill="{color}" fill-opacity="0.85">{title}</circle>'
    return f'<rect x="{x - 4.5:.1f}" y="{y - 4.5:.1f}" width="9" height="9" fill="{color}" fill-opacity="0.85">{title}</rect>'
