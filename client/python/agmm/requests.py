"""Requests for jobs."""

from __future__ import annotations

import numbers
from collections.abc import Mapping, Sequence
from typing import Any, TypedDict

from . import _agmm, arguments, errors
from .dtypes import dtype_of, number_of
from .tensor import Tensor
from .timeouts import to_ms


LONGEST_JOB_S = 86400


class JobOptions(TypedDict, total=False):
    """Options of Client.submit, run and matmul."""

    tensors: Mapping[str, Tensor | str]
    """In place of a, b and c, for specs with other operands: tensors by operand."""
    mesh: str
    """Axes over devices: "x=4", "dp=2,tp=4"; empty: one axis x over `ranks`."""
    ranks: Sequence[int]
    """The devices of the mesh; empty: the first ones, or all if `mesh` is empty too."""
    algorithm: str
    """"auto" or empty, or one that `agmmctl plan --help` names."""
    split: str
    """Axes that cut M, N and K: "M=x,N=y"; empty: chosen by the daemon."""
    chunks: int
    """Pieces of a shard along M or N; 0: chosen."""
    k_chunks: int
    """Pieces of a shard along K; 0: chosen."""
    workspace_shards: int
    """Shards, gathered or of partial sums, that a rank has room for: at least 2; 0: all."""
    carried: bool
    """The multiply that reads a shard's tiles also sends them."""
    partials: Any
    """The dtype of terms of a sum that travel between devices."""
    repeat: int
    """Times that the job's work is done, for measurements."""
    timeout: float
    """Seconds to the job's end, at most a day; then it fails with DeadlineExceeded; default: 60 s."""
    ignore_tuning: bool
    """Chooses by prediction alone, without tuned plans."""


# Options that the library takes as they are, by its name for them.
_PLAIN = {
    "mesh": "mesh",
    "algorithm": "algorithm",
    "split": "split",
    "chunks": "chunk_count",
    "k_chunks": "k_chunk_count",
    "workspace_shards": "workspace_shard_count",
    "carried": "carried",
    "repeat": "repeat_count",
    "ignore_tuning": "ignore_tuning",
}


def reference_of(tensor: Tensor | str) -> str:
    """Returns the text by which the library knows the tensor: a name, or a handle."""
    if isinstance(tensor, str):
        return arguments.text(tensor, "the name of a tensor")
    if isinstance(tensor, Tensor):
        return tensor.handle
    raise errors.InvalidArgument(f"{arguments.a_kind(type(tensor))} is not a tensor; give a Tensor or its name")


def job_request(spec: str, a: Tensor | str | None, b: Tensor | str | None, c: Tensor | str | None,
                options: Mapping[str, Any]) -> _agmm.JobRequest:
    """Returns the extension's request."""
    request = _agmm.JobRequest()
    _set(request, "spec", "spec", spec)
    if a is not None:
        request.a = reference_of(a)
    if b is not None:
        request.b = reference_of(b)
    if c is not None:
        request.c = reference_of(c)
    for option, value in options.items():
        if option in _PLAIN:
            _set(request, option, _PLAIN[option], value)
        elif option == "tensors":
            if value is not None:
                request.tensors = {operand: reference_of(tensor)
                                   for operand, tensor in arguments.items(value, "option tensors", '{"A": "W"}')}
        elif option == "ranks":
            request.ranks = arguments.ranks(value)
        elif option == "partials":
            request.partials = number_of(dtype_of(value))
        elif option == "timeout":
            if isinstance(value, numbers.Real) and value > LONGEST_JOB_S:
                raise errors.InvalidArgument(f"timeout is {value} s; the daemon takes at most {LONGEST_JOB_S} s, a day")
            request.timeout_ms = to_ms(value)
        else:
            known = ", ".join(sorted(JobOptions.__annotations__))
            raise errors.InvalidArgument(f"there is no option {option!r}; the options are {known}")
    return request


def _set(request: _agmm.JobRequest, option: str, attribute: str, value: Any) -> None:
    try:
        setattr(request, attribute, value)
    except (TypeError, UnicodeEncodeError):
        wanted = arguments.a_kind(type(getattr(request, attribute)))
        raise errors.InvalidArgument(f"option {option} is {arguments.described(value)}; give {wanted}") from None
