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
    """Options of Client.submit, run and matmul, as keywords: client.matmul(spec, a, b, timeout=5, split="N=x").

    None stands for the default, as if the option were not given.

    tensors: in place of a, b and c, for specs with other operands: tensors by operand, {"Y": "Y", "Z": "Z"}.
    mesh: axes over devices: "x=4", "dp=2,tp=4"; empty: one axis x over `ranks`. It must be that of the tensors.
    ranks: the devices of the mesh; empty: the first ones, or all if `mesh` is empty too.
    algorithm: "auto" or empty, or one that `agmmctl plan --help` names.
    split: axes that cut dimensions of the product, by their letters in the spec: "M=x,N=y"; empty: chosen by the daemon.
    chunks: pieces of a shard along M or N, at most 256; 0: chosen.
    k_chunks: pieces of a shard along K, at most 256; 0: chosen.
    workspace_shards: shards, gathered or of partial sums, that a device has room for: at least 2; 0: all.
    carried: True: the multiply that reads a shard also forwards it.
    partials: the dtype of terms of a sum that travel between devices: "bf16" halves the bytes of f32.
    repeat: how often to run the product, for measurements; at most 1,000,000.
    timeout: seconds to the job's end, at most a day; then it fails with DeadlineExceeded; default: 60 s.
    ignore_tuning: chooses by prediction alone, without the plans of `agmmctl tune`.
    """

    tensors: Mapping[str, Tensor | str] | None
    mesh: str | None
    ranks: Sequence[int] | None
    algorithm: str | None
    split: str | None
    chunks: int | None
    k_chunks: int | None
    workspace_shards: int | None
    carried: bool | None
    partials: Any
    repeat: int | None
    timeout: float | None
    ignore_tuning: bool | None


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


_OF_ARRAYS = ": Client.put makes a tensor from an array, and Client.matmul takes arrays"


def reference_of(tensor: Tensor | str, advice: str = "") -> str:
    """Returns the text by which the library knows the tensor: a name, or a handle. `advice` ends the error for an array."""
    if isinstance(tensor, str):
        return arguments.text(tensor, "the name of a tensor")
    if isinstance(tensor, Tensor):
        return tensor.handle
    raise errors.InvalidArgument(f"{arguments.a_kind(type(tensor))} is not a tensor; give a Tensor or its name{advice}")


def tensors_of(a: Any, b: Any, c: Any, options: Mapping[str, Any]) -> list[Any]:
    """Returns the tensors of a job, as they were given."""
    return [a, b, c, *(options.get("tensors") or {}).values()]


def job_request(spec: str, a: Tensor | str | None, b: Tensor | str | None, c: Tensor | str | None,
                options: Mapping[str, Any]) -> _agmm.JobRequest:
    """Returns the extension's request."""
    request = _agmm.JobRequest()
    request.spec = arguments.text(spec, "spec")
    given = {"a": a, "b": b, "c": c}
    for argument, tensor in given.items():
        if tensor is not None:
            setattr(request, argument, reference_of(tensor, _OF_ARRAYS))
    if options.get("tensors") is None:
        _check_given(spec, given)
    for option, value in options.items():
        if option not in JobOptions.__annotations__:
            known = ", ".join(sorted(JobOptions.__annotations__))
            raise errors.InvalidArgument(f"there is no option {option!r}; the options are {known}")
        if value is None:
            continue
        if option in _PLAIN:
            _set(request, option, _PLAIN[option], value)
        elif option == "tensors":
            request.tensors = {operand: reference_of(tensor, _OF_ARRAYS)
                               for operand, tensor in arguments.items(value, "option tensors", '{"A": "W"}')}
        elif option == "ranks":
            request.ranks = arguments.ranks(value)
        elif option == "partials":
            request.partials = number_of(dtype_of(value))
        else:
            assert option == "timeout"
            if isinstance(value, numbers.Real) and value > LONGEST_JOB_S:
                raise errors.InvalidArgument(f"timeout is {value} s; the daemon takes at most {LONGEST_JOB_S} s, a day")
            request.timeout_ms = to_ms(value)
    return request


def _check_given(spec: str, given: dict[str, Tensor | str | None]) -> None:
    """Refuses a job in which an operand or the result has no tensor."""
    if "*" not in spec:
        del given["c"]
    missing = [argument for argument, tensor in given.items() if tensor is None or tensor == ""]
    if missing:
        result = list(given)[-1]
        raise errors.InvalidArgument(
            f"{', '.join(missing)} {'is' if len(missing) == 1 else 'are'} missing; give a Tensor or a name for each of "
            f"{', '.join(given)}; {result} is the result, and a new name makes a new tensor")


def _set(request: _agmm.JobRequest, option: str, attribute: str, value: Any) -> None:
    default = getattr(request, attribute)
    if isinstance(default, bool):
        checked: Any = arguments.flag(value, f"option {option}")
    elif isinstance(default, int):
        checked = arguments.whole(value, f"option {option}", 31)
    else:
        checked = arguments.text(value, f"option {option}")
    setattr(request, attribute, checked)
