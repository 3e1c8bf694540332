"""Products without a client of one's own: one connection of the process to the local daemon."""

from __future__ import annotations

import os
import threading
from typing import TYPE_CHECKING, Any

import numpy as np

from .client import Client, connect

if TYPE_CHECKING:
    from typing_extensions import Unpack

    from .requests import JobOptions

_lock = threading.Lock()
_client: Client | None = None


def matmul(a: Any, b: Any, *, spec: str = "A[M_x, K] * B[K, N_x] -> C[M, N_x]", out: Any = None, client: Client | None = None,
           dtype: Any = None, **options: Unpack[JobOptions]) -> np.ndarray[Any, Any]:
    """Returns the product of two matrices, computed on all devices of a world.

    a, b: M x K and K x N: arrays, see Client.put; or tensors or names of `client`.
    spec: the shardings of the operands over the devices, and of the result.
    out: an array of M x N for the result; see Client.get.
    client: None stands for one connection of this process to the local daemon ($AGMM_ENDPOINT), made at first use.
    dtype: "f32", "bf16" or "f16": converts arrays; None: their own.
    options: see agmm.requests.JobOptions.
    Errors: those of Client.put, Client.run and Client.get.
    """
    used = _shared_client() if client is None else client
    product = used.matmul(spec, a, b, dtype=dtype, **options)
    try:
        return product.numpy(out)
    finally:
        product.delete()


def _shared_client() -> Client:
    global _client
    with _lock:
        if _client is None or _client.closed:
            _client = connect()
        return _client


def _forget_after_fork() -> None:
    # The lock may be held by a thread of the parent, which does not exist in the child.
    global _lock
    _lock = threading.Lock()


os.register_at_fork(after_in_child=_forget_after_fork)
