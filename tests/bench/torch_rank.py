#!/usr/bin/env python3
"""The product as people write it with PyTorch: all_gather_into_tensor over Gloo, then matmul, in bf16. If B is
gathered, all_to_all_single then brings the blocks of C to their ranks.

    torch_rank.py FOLDER RANK SIZE      commands as in contender_rank.h; WHAT is gather or unfused

all_gather_into_tensor needs shards of equal size, so smaller ones are padded with rows of zeros, as a user would do.
"""

import pathlib
import sys
import time

import numpy
import torch
import torch.distributed as dist

LEAD_S = 500e-6  # kLeadUs


def part_of(total, parts, part):
    size, larger = divmod(total, parts)
    begin = part * size + min(part, larger)
    return begin, begin + size + (part < larger)


class Timed:
    """A rank whose runs all ranks begin together. `multiply(what)` makes one product."""

    def __init__(self, folder, rank, size):
        self.rank, self.size = rank, size
        dist.init_process_group("gloo", init_method=f"file://{folder}/store", rank=rank, world_size=size)

    def begin(self):
        """Waits for the moment at which all ranks begin, and returns it."""
        start = torch.tensor([time.monotonic() + LEAD_S], dtype=torch.float64)
        dist.all_reduce(start, dist.ReduceOp.MAX)
        start = start.item()
        while time.monotonic() < start:
            time.sleep(0)
        return start

    def time(self, what, products=1):
        start = self.begin()
        for _ in range(products):
            self.multiply(what)
        return (time.monotonic() - start) / products * 1e6

    def times(self, what, count, products):
        return " ".join(f"{self.time(what, int(products)):.3f}" for _ in range(int(count)))


class Rank(Timed):
    def answer(self, words):
        if words[0] == "shape":
            return self.set_shape(*map(int, words[1:4]), pathlib.Path(words[4]), words[5] == "B")
        if words[0] == "run":
            return self.times(*words[1:])
        if words[0] == "rows":
            return self.write_rows(words[1], int(words[2]), words[3], list(map(int, words[4:])))
        raise ValueError(f"unknown command {words[0]}")

    def set_shape(self, m, n, k, data, gathers_b):
        self.m, self.gathers_b = m, gathers_b
        self.m_pad, self.n_pad = -(-m // self.size), -(-n // self.size)
        begin, end = part_of(m, self.size, self.rank)
        a = numpy.fromfile(data / "A.i8", numpy.int8).reshape(m, k)[begin:end]
        left, right = part_of(n, self.size, self.rank)
        b = numpy.fromfile(data / "B.i8", numpy.int8).reshape(k, n)[:, left:right]
        self.cols = right - left
        self.own = torch.zeros(self.m_pad, k, dtype=torch.bfloat16)
        self.own[: end - begin] = torch.from_numpy(a)
        self.a = torch.zeros(self.m_pad * self.size, k, dtype=torch.bfloat16)
        # Row-major, or transposed as torch.nn.Linear keeps its weight: whichever is faster here.
        b = torch.from_numpy(numpy.ascontiguousarray(b)).to(torch.bfloat16)
        if gathers_b:
            padded = torch.zeros(k, self.n_pad, dtype=torch.bfloat16)
            padded[:, : self.cols] = b
            self.b_transposed = padded.t().contiguous()
            layouts = {"row-major": padded, "transposed": self.b_transposed}
            self.all_b = torch.zeros(self.size * k * self.n_pad, dtype=torch.bfloat16)
            self.made = torch.empty(self.size, self.m_pad, self.n_pad, dtype=torch.bfloat16)
            self.c = torch.empty(self.m_pad * self.size, self.n_pad, dtype=torch.bfloat16)
        else:
            layouts = {"row-major": b, "transposed": b.t().contiguous().t()}
            self.c = torch.empty(self.m_pad * self.size, self.cols, dtype=torch.bfloat16)
        times = {}
        for name, self.b in layouts.items():
            self.time("unfused")
            times[name] = min(self.time("gemm") for _ in range(3))
        slowest = torch.tensor([times[name] for name in layouts])
        dist.all_reduce(slowest, dist.ReduceOp.MAX)
        chosen = list(layouts)[int(slowest.argmin())]
        self.b = layouts[chosen]
        return chosen

    def multiply(self, what):
        self.multiply_by_gathered_b(what) if self.gathers_b else self.multiply_gathered_a(what)

    def multiply_gathered_a(self, what):
        if what != "gemm":
            dist.all_gather_into_tensor(self.a, self.own)
        if what != "gather":
            torch.matmul(self.a, self.b, out=self.c)

    def multiply_by_gathered_b(self, what):
        if what != "gemm":
            dist.all_gather_into_tensor(self.all_b, self.b.reshape(-1))
        if what != "gather":
            b = self.all_b.view(self.size, *self.b.shape)  # a matrix of the columns of each rank
            for part, made in zip(b, self.made):
                torch.matmul(self.own, part.t() if self.b is self.b_transposed else part, out=made)
        if what != "gemm":
            # Exchanged as bytes, because not every version supports bf16 here.
            dist.all_to_all_single(self.c.view(torch.uint8), self.made.view(-1, self.n_pad).view(torch.uint8))

    def write_rows(self, what, products, file, rows):
        (self.all_b if self.gathers_b else self.a).fill_(float("nan"))
        self.c.fill_(float("nan"))
        self.time(what, products)
        starts = [part_of(self.m, self.size, r) for r in range(self.size)]
        padded = [
            r * self.m_pad + row - begin
            for row in rows
            for r, (begin, end) in enumerate(starts)
            if begin <= row < end
        ]
        self.c[padded, : self.cols].contiguous().view(torch.int16).numpy().tofile(f"{file}.{self.rank}")
        return ""


def main(kind):
    """Answers commands with a new `kind`."""
    folder, rank, size = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
    torch.set_num_threads(1)
    with open(f"{folder}/in.{rank}") as commands, open(
        f"{folder}/out.{rank}", "w", buffering=1
    ) as out, torch.no_grad():
        this = kind(folder, rank, size)
        out.write(f"ok torch {torch.__version__}\n")
        for line in commands:
            try:
                out.write(f"ok {this.answer(line.split())}\n")
            except Exception as error:  # of any kind: the driver says whose it was
                out.write("error " + " ".join(str(error).split()) + "\n")


if __name__ == "__main__":
    main(Rank)
