"""Products of arrays and tensors in one call."""

from __future__ import annotations

import itertools
import os
import re
import secrets
from types import TracebackType
from typing import TYPE_CHECKING, Any

import numpy as np

from . import arguments, arrays, errors
from .dtypes import DTYPES, dtype_of, name_of
from .job_info import JobInfo
from .requests import reference_of
from .tensor import AnyTensor, Kept, Tensor

if TYPE_CHECKING:
    from .client import Client

_RESULT_DTYPE = re.compile(r"->[^:]*:\s*(\w+)\s*")
_OPERAND = re.compile(r"\s*(\w+)\s*(\[[^]]*\]\s*(?:\{[^}]*\})?)\s*(?::\s*\w+)?\s*")
_numbers = itertools.count(1)
_token = ""


def operands_of(spec: str) -> list[tuple[str, str]]:
    """Returns the name and the sharding of A, B and C in a spec."""
    parts = [_OPERAND.fullmatch(part) for part in re.split(r"\*|->", arguments.text(spec, "spec"))]
    if len(parts) != 3 or None in parts or "*" not in spec.partition("->")[0]:
        other = "; use Client.run for other specs, with tensors on the devices" if "*" not in spec else ""
        raise errors.InvalidArgument(
            f"the spec {spec!r} is not a product; write it like 'A[M_x, K] * B[K, N_x] -> C[M, N_x]'{other}")
    return [(part[1], part[2]) for part in parts if part is not None]


def result_dtype_of(spec: str) -> np.dtype[Any] | None:
    """Returns the dtype that a spec gives its result; None: that of A."""
    named = _RESULT_DTYPE.search(spec)
    return None if named is None else dtype_of(named[1])


def _renew_token() -> None:
    global _token
    _token = secrets.token_hex(8)


_renew_token()
os.register_at_fork(after_in_child=_renew_token)  # children that were forked before they connect give names at the same time


def new_name(kind: str) -> str:
    """Returns a name for a tensor that no user, and no other process, has given."""
    return f"agmm.{kind}.{_token}.{next(_numbers)}"


def _check_dtypes(spec: str, a: Any, b: Any, dtype: Any) -> None:
    """Refuses a dtype without arrays, and operands of two dtypes before they are put. That of a name is not known."""
    operands = {"a": a, "b": b}
    wanted = None if dtype is None else name_of(dtype_of(dtype))
    if wanted is not None and all(isinstance(given, (Tensor, str)) for given in operands.values()):
        result = spec.partition("->")[2].partition(":")[0].strip()
        raise errors.InvalidArgument(f"dtype is {wanted}, which converts arrays, and a and b are tensors; name the result's "
                                     f'dtype in the spec: "-> {result}:{wanted}"')
    found = {name: given.dtype if isinstance(given, Tensor) else arrays.dtype_for(arrays.matrix_of(given, name), dtype, name)
             for name, given in operands.items() if not isinstance(given, str)}
    if len(set(found.values())) == 2:
        on_devices = [given.dtype for given in operands.values() if isinstance(given, Tensor)]
        advice = "put one of them in the other's dtype"
        if len(on_devices) < 2:
            advice = f'pass dtype="{name_of([*on_devices, DTYPES[0]][0])}", which converts arrays'
        raise errors.InvalidArgument(f"a is {name_of(found['a'])} and b is {name_of(found['b'])}, and a product takes "
                                     f"one dtype; {advice}")


class Product:
    """The parts of one Client.matmul, for the two kinds of clients. A context manager around its calls.

    All names are chosen before the first call. On exit, drops every tensor it put, and the unnamed result unless `result`
    took it: a call may have taken effect although it raised.
    """

    puts: list[tuple[str, Any, str]]
    """Names, arrays and shardings of the tensors to put, with `places`."""
    options: dict[str, Any]
    """Of the run."""
    out: str
    """The result's name or handle."""

    def __init__(self, client: Client, spec: str, a: Any, b: Any, out: Tensor | str | None, dtype: Any,
                 options: dict[str, Any]) -> None:
        operands = operands_of(spec)
        if isinstance(out, str):
            arguments.name(out, "out")
        elif not (out is None or isinstance(out, Tensor)):
            raise errors.InvalidArgument(f"out is {arguments.a_kind(type(out))}; give a name or a Tensor for the result, and "
                                         "fetch it into an array with .numpy(out=array)")
        _check_dtypes(spec, a, b, dtype)
        self.places = {"dtype": dtype, **{key: options[key] for key in ("mesh", "ranks") if options.get(key) is not None}}
        self.puts = []
        tensors = []
        for given, (_, sharding) in zip((a, b), operands):
            if not isinstance(given, (Tensor, str)):
                self.puts.append((new_name("python"), given, sharding))
                given = self.puts[-1][0]
            tensors.append(given)
        self._arrays = {name: argument for argument, name in zip("ab", tensors) if name in [put[0] for put in self.puts]}
        self._kept = [Kept(client, name) for name, _, _ in self.puts]
        self._result = out._kept if isinstance(out, Tensor) else None
        if out is None:
            out = new_name("python")
            self._result = Kept(client, out)
            self._kept.append(self._result)
        self.out = reference_of(out)
        result = out if isinstance(out, Tensor) else self.out
        self.options = {**options, "tensors": dict(zip((name for name, _ in operands), [*tensors, result]))}

    def __enter__(self) -> Product:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        for kept in self._kept:
            kept.drop()
            if kind is None:
                kept.reference = ""  # else it drops once more, with the traceback: a call that failed may yet take effect
        if isinstance(error, errors.Error):
            error.args = (self._in_words_of_the_call(str(error)),)

    def _in_words_of_the_call(self, message: str) -> str:
        """Returns an error's message with the arguments in place of the tensors that were made of them."""
        for name, argument in self._arrays.items():
            message, count = re.subn(rf'tensor \d+ "{re.escape(name)}"', argument, message)
            if count > 0:
                message = message.replace("create one of the two in the other's dtype",
                                          "give the other one's dtype with dtype=, which converts arrays")
        return message

    def result(self, job: JobInfo, tensor: AnyTensor) -> AnyTensor:
        """Completes the handle of the result. If it has no name of the user's, the handle keeps it from now on."""
        tensor.job = job
        tensor._kept = self._result
        if self._result in self._kept:
            self._kept.remove(self._result)
            self._result.reference = tensor.handle
        return tensor
