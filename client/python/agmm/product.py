"""Products of arrays and tensors in one call."""

from __future__ import annotations

import itertools
import re
import secrets
from typing import TYPE_CHECKING, Any

import numpy as np

from . import errors
from .dtypes import dtype_of
from .requests import reference_of
from .tensor import Tensor

if TYPE_CHECKING:
    from .client import Client

_RESULT_DTYPE = re.compile(r"->[^:]*:\s*(\w+)\s*")
_OPERAND = re.compile(r"\s*(\w+)\s*(\[[^]]*\]\s*(?:\{[^}]*\})?)\s*(?::\s*\w+)?\s*")
_PREFIX = f"agmm.python.{secrets.token_hex(8)}"
_numbers = itertools.count(1)


def operands_of(spec: str) -> list[tuple[str, str]]:
    """Returns the name and the sharding of A, B and C in a spec."""
    parts = [_OPERAND.fullmatch(part) for part in re.split(r"\*|->", spec)]
    if len(parts) != 3 or None in parts or "*" not in spec.partition("->")[0]:
        raise errors.InvalidArgument(f"the spec {spec!r} is not a product; write it like A[M_x, K] * B[K, N_x] -> C[M, N_x]")
    return [(part[1], part[2]) for part in parts if part is not None]


def result_dtype_of(spec: str) -> np.dtype[Any] | None:
    """Returns the dtype that a spec gives its result; None: that of A."""
    named = _RESULT_DTYPE.search(spec)
    return None if named is None else dtype_of(named[1])


def product(client: Client, spec: str, a: Any, b: Any, out: Tensor | str | None, dtype: Any, options: dict[str, Any]) -> Tensor:
    """Does what Client.matmul does."""
    operands = operands_of(spec)
    result = new_name() if out is None else reference_of(out)
    made: list[Tensor] = []
    try:
        tensors = {}
        for given, (operand, sharding) in zip((a, b), operands):
            if not isinstance(given, (Tensor, str)):
                given = client.put(new_name(), given, sharding, mesh=options.get("mesh", ""), ranks=options.get("ranks", ()),
                                   dtype=dtype)
                made.append(given)
            tensors[operand] = given
        tensors[operands[2][0]] = result
        job = client.run(spec, tensors=tensors, **options)
    except BaseException:
        _delete(made, quietly=True)
        raise
    _delete(made, quietly=False)
    tensor = client.tensor(result)
    tensor.job = job
    return tensor


def new_name() -> str:
    return f"{_PREFIX}.{next(_numbers)}"


def _delete(tensors: list[Tensor], quietly: bool) -> None:
    for tensor in tensors:
        try:
            tensor.delete()
        except errors.Error:
            if not quietly:  # else the first error says more
                raise
