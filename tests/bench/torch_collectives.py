#!/usr/bin/env python3
"""The collectives of torch.distributed over Gloo, in f32.

    torch_collectives.py FOLDER RANK SIZE      commands as in mpi_collectives.cc

all_reduce adds up in place, as users write it.
"""

import time

import torch
import torch.distributed as dist

import torch_rank


def run_collective(name, to, source):
    if name == "all_gather":
        dist.all_gather_into_tensor(to, source)
    elif name == "reduce_scatter":
        dist.reduce_scatter_tensor(to, source)
    elif name == "all_reduce":
        dist.all_reduce(to)
    elif name == "all_to_all":
        dist.all_to_all_single(to, source)
    else:
        raise ValueError(f"no collective {name}")


class Collectives(torch_rank.Timed):
    def answer(self, words):
        _, name, size, count = words
        whole, part = torch.zeros(int(size) // 4), torch.zeros(int(size) // 4 // self.size)
        to = part if name == "reduce_scatter" else whole
        source = part if name == "all_gather" else torch.zeros_like(whole)
        times, begin = [], self.begin()
        for _ in range(1 + int(count)):
            run_collective(name, to, source)
            end = time.monotonic()
            times.append((end - begin) * 1e6)
            begin = end
        return " ".join(f"{us:.3f}" for us in times[1:])


if __name__ == "__main__":
    torch_rank.main(Collectives)
