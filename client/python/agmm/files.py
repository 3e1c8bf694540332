"""Whole files of tensors: rules to load them, and what a load has done."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Generic

from . import _agmm, arguments, errors
from .dtypes import dtype_of, number_of
from .tensor import AnyTensor, Tensor

if TYPE_CHECKING:
    from .client import Client


@dataclasses.dataclass(frozen=True)
class Rule:
    """How Client.load puts the tensors of a file that a pattern matches.

    sharding: for example "[N_x, K]"; it names the dimensions after `transpose`.
    mesh: axes over devices: "x=4", "dp=2,tp=4"; empty: one axis x over `ranks`.
    ranks: the devices of the mesh; empty: the first ones, or all if `mesh` is empty too.
    dtype: "f32", "bf16" or "f16", to which elements are converted; None: the file's own.
    name: the name on the devices, in which "*" stands for the one in the file: "llama.*"; empty: the same name.
    transpose: stores the transpose: a weight of torch, N x K (out x in), becomes a K x N tensor.
    """

    sharding: str
    mesh: str = ""
    ranks: Sequence[int] = ()
    dtype: Any = None
    name: str = ""
    transpose: bool = False


@dataclasses.dataclass(frozen=True)
class Loaded(Generic[AnyTensor]):
    """One tensor that Client.load has put."""

    name_in_file: str
    tensor: AnyTensor
    bytes: int
    """Of the whole matrix, however many devices hold a copy."""
    seconds: float
    """The time of its upload."""


@dataclasses.dataclass(frozen=True)
class LoadedFile(Generic[AnyTensor]):
    """What Client.load has done. `loaded[name]` is the tensor of a name in the file, and iterating gives these names."""

    loaded: list[Loaded[AnyTensor]]
    """In the order of the file."""
    skipped: list[str]
    """Names not loaded: a rule skips them, or none matches."""
    unused_patterns: list[str]
    """Patterns that match no name in the file."""

    def __getitem__(self, name_in_file: str) -> AnyTensor:
        """Returns the tensor that was loaded from this name in the file. Errors: NotFound."""
        for each in self.loaded:
            if each.name_in_file == name_in_file:
                return each.tensor
        raise errors.NotFound(f"{name_in_file!r} was not loaded; loaded are {list(self)}")

    def __iter__(self) -> Iterator[str]:
        return iter([each.name_in_file for each in self.loaded])

    def __contains__(self, name_in_file: object) -> bool:
        return name_in_file in list(self)


def rules_of(shard: Mapping[str, Rule | str | None]) -> list[_agmm.LoadRule]:
    """Returns the rules of the library, in the order of the mapping."""
    return [_rule_of(pattern, rule) for pattern, rule in arguments.items(shard, "shard", '{"*": "[M_x, K]"}')]


def _rule_of(pattern: str, rule: Rule | str | None) -> _agmm.LoadRule:
    if rule is None:
        return _agmm.LoadRule(pattern, "", "", [], None, "", False, True)
    if isinstance(rule, str):
        rule = Rule(rule)
    if not isinstance(rule, Rule):
        raise errors.InvalidArgument(f"the rule of {pattern!r} is {arguments.shown(rule)}; give a sharding, an agmm.Rule, or None to skip")
    number = None if rule.dtype is None else number_of(dtype_of(rule.dtype))
    return _agmm.LoadRule(pattern, arguments.text(rule.sharding, "sharding"), arguments.text(rule.mesh, "mesh"),
                          arguments.ranks(rule.ranks), number, arguments.text(rule.name, "name"), arguments.flag(rule.transpose, "transpose"), False)


def loaded_file(client: Client, fields: tuple[Any, ...]) -> LoadedFile[Tensor]:
    """Returns what the library reports."""
    loaded, skipped, unused = fields
    made = [Loaded(name, Tensor(client, tensor), count, seconds) for name, tensor, count, seconds in loaded]
    return LoadedFile(made, list(skipped), list(unused))


def path_of(path: str | os.PathLike[str]) -> bytes:
    """Returns the path as the bytes of the file system, which need not be UTF-8."""
    try:
        encoded = os.fsencode(path)
    except TypeError:
        raise errors.InvalidArgument(f"path is {arguments.described(path)}; give a str or a pathlib.Path") from None
    except UnicodeEncodeError as error:
        raise errors.InvalidArgument(f"path is {path!r}, which cannot name a file: {error.reason}") from None
    if b"\0" in encoded:
        raise errors.InvalidArgument(f"path is {path!r}, which cannot name a file: it has a null character")
    return encoded
