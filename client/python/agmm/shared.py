"""Products without a client of one's own: one connection of the process to the local daemon."""

from __future__ import annotations

import contextlib
import os
import threading
from typing import TYPE_CHECKING, Any

import numpy as np

from . import arguments, errors
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
    client: None stands for one connection of this process to the local daemon ($AGMM_ENDPOINT), made at first use, with
        a session: its tensors are deleted and its jobs cancelled at the end of this process.
    dtype: "f32", "bf16" or "f16": converts arrays; None: their own.
    options: see agmm.JobOptions.
    Errors: those of Client.put, Client.run and Client.get.
    """
    if client is not None:
        check_client(client)
        return _matmul(client, a, b, spec, out, dtype, options)
    used = _shared_client()
    try:
        return _matmul(used, a, b, spec, out, dtype, options)
    except (errors.Unavailable, errors.FailedPrecondition) as error:
        if error.reason or isinstance(error, errors.FailedPrecondition) and _has_session(used):
            raise
    # The session has ended, with its daemon or its connection.
    return _matmul(_shared_client(lost=used), a, b, spec, out, dtype, options)


def check_client(client: Any) -> None:
    """Raises unless this is a Client."""
    if not isinstance(client, Client):
        raise errors.InvalidArgument(f"client is {arguments.described(client)}; give an agmm.Client, from agmm.connect")


def _matmul(client: Client, a: Any, b: Any, spec: str, out: Any, dtype: Any, options: Any) -> np.ndarray[Any, Any]:
    product = client.matmul(spec, a, b, dtype=dtype, **options)
    try:
        return product.numpy(out)
    finally:
        with contextlib.suppress(errors.Error):  # then the client deletes it later
            product.delete()


def _has_session(client: Client) -> bool:
    try:
        return any(session.own for session in client.sessions())
    except errors.Error:
        return False


def _shared_client(lost: Client | None = None) -> Client:
    global _client
    with _lock:
        if _client is None or _client is lost or _client.closed:
            _client = connect(session=True)
        return _client


def _forget_after_fork() -> None:
    # The lock may be held by a thread of the parent, which does not exist in the child.
    global _lock
    _lock = threading.Lock()


os.register_at_fork(after_in_child=_forget_after_fork)
