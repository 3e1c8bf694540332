"""The products to measure, with the M, N and K of the whole product, and their operands.

Operands are agmm's fill INTEGERS (kernels/base/fill_value.h): integers from -4 to 4, so that every sum is exact in f32
and the rounding to bf16 is the only one.
"""

import math
import pathlib
import random
import re
from typing import NamedTuple

import numpy

SEED_A, SEED_B = 1, 2
DIVISOR = 8  # of every dimension of the suite, on CPUs


class Shape(NamedTuple):
    name: str
    m: int
    n: int
    k: int


def _sums():
    """(M, N, K) of products whose K is cut, which `agmmctl tune --suite` also runs."""
    lines = (pathlib.Path(__file__).resolve().parents[2] / "client/ctl/sum_shapes.inc").read_text().splitlines()
    return tuple(tuple(int(size) for size in re.findall(r"\d+", line)) for line in lines if line.startswith("{") and line[1].isdigit())


SUMS = _sums()


def _suite():
    full = [("LLaMA-7B", 8192, 11008, 4096), ("LLaMA-3-8B", 8192, 14336, 4096)]
    full += [(f"LLaMA-3-70B M={2**i}", 2**i, 28672, 8192) for i in range(6, 16)]
    full += [("Qwen2-72B", 8192, 29568, 8192), ("LLaMA-3-405B", 16384, 53248, 16384), ("GPT-3", 8192, 49152, 12288)]
    full += [(f"decode M={m}", m, 28672, 8192) for m in (1, 16, 32, 128, 1000, 4097)]
    return [Shape(name, *(-(-size // DIVISOR) for size in sizes)) for name, *sizes in full]


def suite(hosts):
    """ANCHORS' suite, with each dimension divided by 8 and rounded up. The last shape is for each rank."""
    unit = (1024 // DIVISOR, 4096 // DIVISOR, 4096 // DIVISOR)
    return _suite() + [Shape("Pallas unit", unit[0] * hosts, unit[2] * hosts, unit[1])]


BALANCES = ("2048x4096x256", "2048x4096x1024", "4096x4096x512")


def parse(text, hosts):
    """Parses MSHARDxKxNSHARD. Errors: ValueError, which says what is wrong."""
    try:
        m_shard, k, n_shard = map(int, text.lower().split("x"))
    except ValueError:
        raise ValueError(f'--shape "{text}" is not MSHARDxKxNSHARD, such as {BALANCES[0]}') from None
    if min(m_shard, k, n_shard) < 1 or max(m_shard, k, n_shard) > 1 << 20:
        raise ValueError(f'--shape "{text}": every size must lie in 1 to {1 << 20}')
    return Shape(text, m_shard * hosts, n_shard * hosts, k)


def draw(seed, hosts, count, most_us=150_000):
    """Random shapes: the sizes are independent, and uniform in their logarithm. Each takes at most about `most_us`."""
    rng = random.Random(seed)
    drawn = []
    while len(drawn) < count:
        m, n, k = (
            round(math.exp(rng.uniform(math.log(low), math.log(high))))
            for low, high in ((64, 8192), (64, 8192), (256, 4096))
        )
        gemm_us, gather_us = 2 * m * n * k / hosts / 400e3, 2 * m * k * (hosts - 1) / hosts / 250
        if 2_000 < max(gemm_us, gather_us) < most_us:
            drawn.append(Shape(f"random {len(drawn) + 1}", m, n, k))
    return drawn


def part_of(total, parts, part):
    """(begin, end) of a part. As in agmm, the first total % parts parts have one more."""
    size, larger = divmod(total, parts)
    begin = part * size + min(part, larger)
    return begin, begin + size + (part < larger)


def integers(seed, rows, cols):
    """int8[rows, cols] with the values of kernels/base/fill_value.h."""
    out = numpy.empty(rows * cols, numpy.int8)
    golden, batch = 0x9E3779B97F4A7C15, 1 << 20
    for begin in range(0, out.size, batch):
        index = numpy.arange(begin + 1, min(begin + batch, out.size) + 1, dtype=numpy.uint64)
        z = index * numpy.uint64(golden) + numpy.uint64(seed)
        z = (z ^ z >> numpy.uint64(30)) * numpy.uint64(0xBF58476D1CE4E5B9)
        z = (z ^ z >> numpy.uint64(27)) * numpy.uint64(0x94D049BB133111EB)
        bits = z ^ z >> numpy.uint64(31)
        out[begin : begin + batch] = ((bits >> numpy.uint64(32)) * numpy.uint64(9) >> numpy.uint64(32)).astype(
            numpy.int8
        ) - 4
    return out.reshape(rows, cols)


def to_bf16(values):
    """The bits of f32 values rounded to bf16, to nearest even. The values must not be NaN."""
    bits = numpy.ascontiguousarray(values, numpy.float32).view(numpy.uint32)
    return ((bits + 0x7FFF + (bits >> 16 & 1)) >> 16).astype(numpy.uint16)


def sampled_rows(m, hosts, count=24):
    """The first and the last row of each shard, and some rows between them."""
    edges = {
        row
        for part in range(hosts)
        for begin, end in [part_of(m, hosts, part)]
        if end > begin
        for row in (begin, end - 1)
    }
    between = numpy.linspace(0, m - 1, count).round().astype(int).tolist()
    return sorted(edges | set(between))


def reference(a, b, rows):
    """These rows of A B as bf16 bits, computed exactly and rounded once."""
    return to_bf16(a[rows].astype(numpy.float32) @ b.astype(numpy.float32))
