#!/usr/bin/env python3
"""Measures rates of one GPU and compares them with their bounds: copies, products, gathered products, the host's time
for an epoch, the kernels of kernels/cuda/sm90.

    bench.py [--bin FOLDER] [--probe FILE] [--out FILE] [--dry-run]

Runs gpu_bench, then the same products by PyTorch where it is installed, then sm90_bench. --probe: what
cuda_probe --json wrote, for the rates of copies. --dry-run: tiny sizes on the model of the driver, whose times
say nothing and are not written.
"""

import argparse
import datetime
import json
import os
import pathlib
import re
import shutil
import statistics
import subprocess
import sys

HERE = pathlib.Path(__file__).resolve().parent
SETS, ROUNDS, WARM_UP = 3, 51, 6  # as many sets of operands as gpu_bench
LIMIT_S = {"gpu_bench": 70, "sm90_bench": 40}
NO_HOPPER_GPU = 77  # exit code of sm90_bench
GOAL_PYTORCH, GOAL_CUBLASLT, GOAL_COPIES = 0.97, 0.97, 0.8
# Microseconds of the ring of JAX's Mosaic GPU kernels, by the number of H100s that it runs on.
MOSAIC_RING_US = {2: 102, 4: 212, 8: 436}


class CannotMeasure(Exception):
    """Why a program has no results."""


def first_line(command):
    """The first line that a command prints, or nothing if it fails or does not exist."""
    if not shutil.which(command[0]):
        return ""
    done = subprocess.run(command, capture_output=True, text=True, timeout=30)
    return done.stdout.partition("\n")[0].strip() if done.returncode == 0 else ""


def commit():
    packed = HERE.parent.parent / "COMMIT"
    if packed.is_file():
        return packed.read_text().strip()
    return first_line(["git", "-C", str(HERE), "describe", "--always", "--dirty"]) or "unknown"


def driver():
    return first_line(["nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader"]) or "unknown"


def measure(folder, program, arguments):
    """The measurements of a program on one GPU: an object with the device and rows. No rows if they need a Hopper GPU."""
    visible = os.environ.get("CUDA_VISIBLE_DEVICES", "").partition(",")[0] or "0"
    command, limit = [str(folder / program), *arguments], LIMIT_S[program]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=limit,
                              env={**os.environ, "CUDA_VISIBLE_DEVICES": visible})
    except subprocess.TimeoutExpired as error:
        raise CannotMeasure(f"{' '.join(command)} did not end within {limit} s") from error
    if done.returncode == NO_HOPPER_GPU:
        return {"rows": []}
    if done.returncode != 0:
        raise CannotMeasure(f"{' '.join(command)} ended with {done.returncode}: {done.stderr.strip()[-2000:]}")
    return json.loads(done.stdout)


def torch_products(shapes):
    """The microseconds of each product by torch.matmul and the version of torch; or nothing, and the reason."""
    try:
        import torch
    except (ImportError, OSError) as error:
        return {}, f"no PyTorch ({error})"
    if not torch.cuda.is_available():
        return {}, f"PyTorch {torch.__version__} finds no GPU"
    found = {}
    try:
        for shape in shapes:
            found[shape] = torch_product(torch, *shape)
    except RuntimeError as error:
        return found, f"PyTorch {torch.__version__} fails: {str(error).partition(chr(10))[0]}"
    return found, f"PyTorch {torch.__version__}"


def torch_product(torch, m, n, k):
    def random(rows, cols):
        return torch.rand(rows, cols, device="cuda").mul_(2).sub_(1).bfloat16()

    sets = [(random(m, k), random(k, n), torch.empty(m, n, device="cuda", dtype=torch.bfloat16))
            for _ in range(SETS)]
    stamps = [(torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True))
              for _ in range(ROUNDS)]
    for i in range(WARM_UP):
        a, b, c = sets[i % SETS]
        torch.matmul(a, b, out=c)
    for i, (begin, end) in enumerate(stamps):
        a, b, c = sets[i % SETS]
        begin.record()
        torch.matmul(a, b, out=c)
        end.record()
    torch.cuda.synchronize()
    return statistics.median(begin.elapsed_time(end) * 1e3 for begin, end in stamps)


def ceilings(probe):
    """GB/s of copies of pinned memory into and out of a GPU, as the probe measured them."""
    if probe is None or not probe.is_file():
        return {}
    for check in json.loads(probe.read_text())["checks"]:
        if check["name"] == "fact.copy_rates" and check["is"] == "fact":
            rates = re.findall(r"(host to device|device to host) ([0-9.]+) GB/s", check["text"])
            return {way: float(rate) for way, rate in rates}
    return {}


def compared(rows, by_torch, torch_version, copies):
    """The rows with their bounds: a rate in GB/s, a time in us, and the share of it that is reached."""
    products = {(row["m"], row["n"], row["k"]): row["us"] for row in rows if row["what"] == "product"}
    for row in rows:
        if row["what"] == "copies":
            for way, ceiling in (("write", "host to device"), ("read", "device to host")):
                rate, bound = row[f"{way}_gb_s"], copies.get(ceiling)
                yield {"case": f"{way} {row['bytes'] >> 20} MiB of a heap", "gb_s": rate, "goal": GOAL_COPIES,
                       "bound": f"{ceiling}, {bound} GB/s" if bound else "no rates of copies; see --probe",
                       "ratio": rate / bound if bound else None}
        elif row["what"] == "product":
            shape = row["m"], row["n"], row["k"]
            bound = by_torch.get(shape)
            yield {"case": "product {}x{}x{}".format(*shape), "us": row["us"], "tflop_s": row["tflop_s"],
                   "bound": f"{torch_version}, {bound:.1f} us" if bound else torch_version,
                   "ratio": bound / row["us"] if bound else None, "goal": GOAL_PYTORCH}
        elif row["what"] == "gathered":
            shape = row["m"], row["n"], row["k"]
            chunks = "" if row["chunks"] == 1 else f", {row['chunks']} chunks"
            yield {"case": "{} ranks, {}{}".format(row["ranks"], row["algorithm"], chunks), "us": row["us"],
                   "tflop_s": 2e-6 * shape[0] * shape[1] * shape[2] / row["us"],
                   "bound": "one product {}x{}x{}, {:.1f} us".format(*shape, products[shape]),
                   "ratio": products[shape] / row["us"]}
        else:
            yield {"case": f"an epoch of {row['ranks']} ranks, {row['chunks']} chunks, host", "us": row["us_an_epoch"]}


def of_sm90(rows):
    """The rows of sm90_bench with their bounds. A dry run has no times."""
    for row in rows:
        shape, us = "{m}x{n}x{k}".format(**row), row.get("us")
        found = {key: row.get(key) for key in ("us", "tflop_s")}
        if row["what"] == "sm90_product":
            found |= {"case": f"{row['kernel']} {shape}", "bound": "cuBLASLt", "goal": GOAL_CUBLASLT}
            other = row.get("cublaslt_us")
        else:
            found |= {"case": f"{row['ranks']} ranks, {row['kernel']}, {row['send']}", "bound": f"one product {shape}"}
            other = row.get("one_product_us")
            if us and row["send"] == "carried":
                # As fast as on GPUs of their own, if these worked one after the other.
                found["goal"] = round(other / (row["ranks"] * MOSAIC_RING_US[row["ranks"]]), 3)
        if us:
            found |= {"ratio": other / us, "bound": f"{found['bound']}, {other:.1f} us"}
        yield found


def text(row, key, form):
    return form.format(row[key]) if row.get(key) is not None else ""


def table(rows):
    cells = [("case", "us", "TFLOP/s", "GB/s", "of it", "goal", "bound")]
    for row in rows:
        cells.append((row["case"], text(row, "us", "{:.1f}"), text(row, "tflop_s", "{:.1f}"),
                      text(row, "gb_s", "{:.2f}"), text(row, "ratio", "{:.3f}"), text(row, "goal", "{}"),
                      row.get("bound", "")))
    widths = [max(len(line[i]) for line in cells) for i in range(len(cells[0]))]
    for line in cells:
        middle = "  ".join(cell.rjust(width) for cell, width in list(zip(line, widths))[1:-1])
        yield f"{line[0].ljust(widths[0])}  {middle}  {line[-1]}".rstrip()


def main():
    flags = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    flags.add_argument("--bin", type=pathlib.Path, default=os.environ.get("AGMM_BIN", HERE.parent.parent / "bin"))
    flags.add_argument("--probe", type=pathlib.Path)
    flags.add_argument("--out", type=pathlib.Path)
    flags.add_argument("--dry-run", action="store_true")
    flags = flags.parse_args()
    if flags.dry_run and flags.out:
        sys.exit(f"bench.py: --dry-run measures nothing; leave out --out {flags.out}")

    dry = ["--dry-run"] if flags.dry_run else []
    failures = []
    try:
        measured = measure(flags.bin, "gpu_bench", dry)
    except CannotMeasure as error:
        sys.exit(f"bench.py: {error}")
    if "MODEL" in measured["device"] and not flags.dry_run:
        sys.exit(f"bench.py: {measured['device']} is a model, whose times mean nothing; use --dry-run")
    shapes = [(row["m"], row["n"], row["k"]) for row in measured["rows"] if row["what"] == "product"]
    by_torch, torch_version = torch_products(shapes)
    rows = list(compared(measured["rows"], by_torch, torch_version, ceilings(flags.probe)))
    for part in ("product", "ring"):
        try:
            rows += of_sm90(measure(flags.bin, "sm90_bench", [part, *dry])["rows"])
        except CannotMeasure as error:
            failures.append(f"bench.py: {error}")  # after the rows of the others
    results = {
        "schema": "agmm.gpu_results.v1",
        "date": datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="seconds"),
        "device": measured["device"],
        "driver": driver(),
        "commit": commit(),
        "torch": torch_version,
        "rows": rows,
    }
    written = json.dumps(results, indent=1) + "\n"
    print(f"{results['device']}, driver {results['driver']}, commit {results['commit']}")
    if flags.dry_run:
        print("a dry run: tiny sizes on a model, whose times say nothing")
    print(*table(rows), sep="\n")
    print(f"{len(rows)} cases; {torch_version}")
    if flags.out:
        flags.out.write_text(written)
    if failures:
        sys.exit("\n".join(failures))


if __name__ == "__main__":
    main()
