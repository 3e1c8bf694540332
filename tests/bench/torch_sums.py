#!/usr/bin/env python3
"""A product in f32 whose K is cut, as people write it with PyTorch: matmul, and a collective over Gloo.

    torch_sums.py FOLDER RANK SIZE      commands as in mpi_sums.cc; WHAT is gemm, collective or unfused

If A is gathered, its columns arrive in one block a rank. Each block is multiplied by its rows of B, and added up.
"""

import pathlib

import numpy
import torch

import torch_rank
from torch_collectives import run_collective


class Rank(torch_rank.Timed):
    def answer(self, words):
        if words[0] == "shape":
            return self.set_shape(words[1], *map(int, words[2:5]), pathlib.Path(words[5]))
        if words[0] == "run":
            return self.times(*words[1:])
        if words[0] == "rows":
            return self.write_rows(words[1], list(map(int, words[2:])))
        raise ValueError(f"unknown command {words[0]}")

    def set_shape(self, form, m, n, k, data):
        def part_of(total):
            return slice(*torch_rank.part_of(total, self.size, self.rank))

        def load(name, rows, cols, part):
            whole = numpy.fromfile(data / name, numpy.int8).reshape(rows, cols)
            return torch.from_numpy(numpy.ascontiguousarray(whole[part], numpy.float32))

        self.form, self.gathers = form, form == "k_gather"
        self.a = load("A.i8", m, k, (slice(None), part_of(k)))
        self.b = load("B.i8", k, n, (slice(None), part_of(n)) if self.gathers else part_of(k))
        self.gathered = torch.zeros(self.size, *self.a.shape) if self.gathers else None
        self.made = torch.zeros(m, self.b.shape[1])
        self.first_row = part_of(m).start if form == "reduce_scatter" else 0
        self.c = torch.zeros(m // self.size, n) if form == "reduce_scatter" else self.made
        self.multiply("unfused")
        return ""

    def multiply(self, what):
        if self.gathers and what != "gemm":
            run_collective("all_gather", self.gathered.view(-1), self.a.view(-1))
        if what != "collective":
            self.multiply_own()
        if not self.gathers and what != "gemm":
            run_collective(self.form, self.c, self.made)

    def multiply_own(self):
        if not self.gathers:
            torch.matmul(self.a, self.b, out=self.made)
            return
        blocks = self.b.view(self.size, -1, self.b.shape[1])
        torch.matmul(self.gathered[0], blocks[0], out=self.made)
        for a, b in zip(self.gathered[1:], blocks[1:]):
            self.made.addmm_(a, b)

    def write_rows(self, file, rows):
        if self.gathers:
            self.gathered.fill_(float("nan"))
        self.c.fill_(float("nan"))
        self.multiply("unfused")
        own = [row - self.first_row for row in rows if 0 <= row - self.first_row < len(self.c)]
        self.c[own].numpy().tofile(f"{file}.{self.rank}")
        return ""


if __name__ == "__main__":
    torch_rank.main(Rank)
