"""Makes the PTX of three products with Triton, for tests of the PTX model; needs no GPU.

    pip install triton && python3 triton_kernels.py triton

The folder gets masked.ptx (loads with masks, wgmma from registers' stores), tiles.ptx (TMA with tensor maps of the host, a
persistent grid) and maps.ptx (TMA with tensor maps that the kernel makes itself). The first line of each names the version.
"""

import os
import sys

import triton
import triton.language as tl
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

TILE = dict(TILE_M=64, TILE_N=64, TILE_K=64)


@triton.jit
def masked(a, b, c, m, n, k, pitch_a, pitch_b, pitch_c,
           TILE_M: tl.constexpr, TILE_N: tl.constexpr, TILE_K: tl.constexpr):
    """C[m, n] = A[m, k] * B[k, n], a tile for each program; rows and columns past the end are masked."""
    rows = tl.program_id(0) * TILE_M + tl.arange(0, TILE_M)
    cols = tl.program_id(1) * TILE_N + tl.arange(0, TILE_N)
    inner = tl.arange(0, TILE_K)
    total = tl.zeros((TILE_M, TILE_N), dtype=tl.float32)
    for first in range(0, k, TILE_K):
        depth = first + inner
        x = tl.load(a + rows[:, None] * pitch_a + depth[None, :], mask=(rows[:, None] < m) & (depth[None, :] < k), other=0.0)
        y = tl.load(b + depth[:, None] * pitch_b + cols[None, :], mask=(depth[:, None] < k) & (cols[None, :] < n), other=0.0)
        total = tl.dot(x, y, total)
    tl.store(c + rows[:, None] * pitch_c + cols[None, :], total.to(tl.float16),
             mask=(rows[:, None] < m) & (cols[None, :] < n))


@triton.jit
def tiles(a, b, c, m, n, k, PROGRAMS: tl.constexpr,
          TILE_M: tl.constexpr, TILE_N: tl.constexpr, TILE_K: tl.constexpr):
    """C[m, n] = A[m, k] * B[n, k]^T with tensor descriptors of the host; a program takes every PROGRAMS-th tile."""
    across = tl.cdiv(n, TILE_N)
    for tile in tl.range(tl.program_id(0), tl.cdiv(m, TILE_M) * across, PROGRAMS, flatten=True):
        row = tile // across * TILE_M
        col = tile % across * TILE_N
        total = tl.zeros((TILE_M, TILE_N), dtype=tl.float32)
        for step in range(0, tl.cdiv(k, TILE_K)):
            total = tl.dot(a.load([row, step * TILE_K]), b.load([col, step * TILE_K]).T, total)
        c.store([row, col], total.to(tl.float16))


@triton.jit
def maps(a, b, c, m, n, k, PROGRAMS: tl.constexpr,
         TILE_M: tl.constexpr, TILE_N: tl.constexpr, TILE_K: tl.constexpr):
    """The product of `tiles`, with tensor descriptors that each program makes in scratch memory."""
    tiles_of_a = tl.make_tensor_descriptor(a, shape=[m, k], strides=[k, 1], block_shape=[TILE_M, TILE_K])
    tiles_of_b = tl.make_tensor_descriptor(b, shape=[n, k], strides=[k, 1], block_shape=[TILE_N, TILE_K])
    tiles_of_c = tl.make_tensor_descriptor(c, shape=[m, n], strides=[n, 1], block_shape=[TILE_M, TILE_N])
    across = tl.cdiv(n, TILE_N)
    for tile in tl.range(tl.program_id(0), tl.cdiv(m, TILE_M) * across, PROGRAMS, flatten=True):
        row = tile // across * TILE_M
        col = tile % across * TILE_N
        total = tl.zeros((TILE_M, TILE_N), dtype=tl.float32)
        for step in range(0, tl.cdiv(k, TILE_K)):
            total = tl.dot(tiles_of_a.load([row, step * TILE_K]), tiles_of_b.load([col, step * TILE_K]).T, total)
        tiles_of_c.store([row, col], total.to(tl.float16))


def save(folder, kernel, arguments, constants):
    signature = arguments | {name: "constexpr" for name in constants}
    compiled = triton.compile(ASTSource(fn=kernel, signature=signature, constexprs=constants),
                              target=GPUTarget("cuda", 90, 32), options=dict(num_warps=4, num_stages=3))
    facts = compiled.metadata
    text = compiled.asm["ptx"]
    # Debug sections name the folder in which they were made.
    text = text[:text.index("\t.section\t.debug")] if "\t.section\t.debug" in text else text
    text = "\n".join(line for line in text.split("\n") if not line.startswith("\t.file"))
    with open(os.path.join(folder, f"{kernel.__name__}.ptx"), "w", encoding="utf-8") as file:
        file.write(f"// Triton {triton.__version__}, from triton_kernels.py; shared memory {facts.shared} bytes, "
                   f"{facts.num_warps} warps, scratch {facts.global_scratch_size} bytes a program\n{text}")
    print(kernel.__name__, len(text), facts.shared)


def main():
    folder = sys.argv[1]
    os.makedirs(folder, exist_ok=True)
    pointers = dict(a="*fp16", b="*fp16", c="*fp16")
    sizes = dict(m="i32", n="i32", k="i32")
    save(folder, masked, pointers | sizes | dict(pitch_a="i32", pitch_b="i32", pitch_c="i32"), TILE)
    block = "tensordesc<fp16[64,64]>"
    save(folder, tiles, dict(a=block, b=block, c=block) | sizes, TILE | dict(PROGRAMS=4))
    save(folder, maps, pointers | sizes, TILE | dict(PROGRAMS=4))


if __name__ == "__main__":
    main()
