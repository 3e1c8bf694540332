"""Tensors in this process's memory."""

from __future__ import annotations

import dataclasses
from types import TracebackType
from typing import TYPE_CHECKING, Any

import numpy as np

from . import _agmm, errors
from .tensor import Kept, Tensor
from .timeouts import to_ms

if TYPE_CHECKING:
    from .client import Client


class MappedArray(np.ndarray[Any, Any]):
    """A shard of a tensor, as an ndarray over the tensor's own memory.

    Once the mapping has ended, a use raises FailedPrecondition. Views share this, and results of arithmetic are plain
    arrays. Code that reads the memory without this class (numpy.asarray before the end, iterators such as `flat`, buffers,
    other libraries) reads zeros after it.
    """

    _memory: _Memory | None

    def __array_finalize__(self, obj: Any) -> None:
        # A copy owns its memory, and outlives the mapping.
        self._memory = None if np.ndarray.flags.__get__(self).owndata else getattr(obj, "_memory", None)

    def __getattribute__(self, name: str) -> Any:
        if not name.startswith("_"):
            _check(self)
        return super().__getattribute__(name)

    def __array_ufunc__(self, ufunc: Any, method: str, *inputs: Any, out: Any = (), **options: Any) -> Any:
        if out:
            options["out"] = tuple(_plain(each) for each in out)
        result = getattr(ufunc, method)(*map(_plain, inputs), **options)
        return out[0] if len(out) == 1 else result

    def __array_function__(self, function: Any, types: Any, args: Any, kwargs: Any) -> Any:
        plain = function(*_plain(args), **_plain(kwargs))
        if type(plain) in (list, tuple):  # of numpy.split and the like
            return type(plain)(_guarded_view(each, (args, kwargs)) for each in plain)
        return _guarded_view(plain, (args, kwargs))


def _check(array: MappedArray) -> None:
    memory = array._memory
    if memory is not None and memory.mapping.detached:
        raise errors.FailedPrecondition(
            f"the mapping of tensor {memory.name!r} has ended; map it again, or copy the array before the end")


def _plain(value: Any) -> Any:
    """Returns the value with plain arrays in place of mapped ones."""
    if isinstance(value, MappedArray):
        return value.view(np.ndarray)
    if isinstance(value, tuple):
        return tuple(map(_plain, value))
    if isinstance(value, list):
        return list(map(_plain, value))
    if isinstance(value, dict):
        return {key: _plain(each) for key, each in value.items()}
    return value


def _guarded_view(result: Any, given: Any) -> Any:
    """Returns `result`, as a mapped array if it is a view of a mapped one among `given`."""
    if not isinstance(result, np.ndarray) or result.flags.owndata:
        return result
    if isinstance(given, MappedArray):
        if not np.may_share_memory(result, given.view(np.ndarray)):
            return result
        view = result.view(MappedArray)
        view._memory = given._memory
        return view
    for each in given.values() if isinstance(given, dict) else given if isinstance(given, (list, tuple)) else ():
        if isinstance(view := _guarded_view(result, each), MappedArray):
            return view
    return result


def _guarded(name: str) -> Any:
    method = getattr(np.ndarray, name)

    def guarded(self: MappedArray, *args: Any) -> Any:
        _check(self)
        return method(self, *args)

    guarded.__name__ = name
    guarded.__doc__ = method.__doc__
    return guarded


# Python finds these without __getattribute__, and they do not end in __array_ufunc__.
for _name in ("__getitem__", "__setitem__", "__len__", "__iter__", "__contains__", "__repr__", "__str__", "__format__",
              "__bool__", "__int__", "__float__", "__complex__", "__index__", "__copy__", "__deepcopy__", "__reduce__",
              "__reduce_ex__", "__array__", "__dlpack__"):
    setattr(MappedArray, _name, _guarded(_name))


@dataclasses.dataclass(frozen=True)
class Shard:
    """The part of a tensor on one device: rows and columns of the tensor, and their elements."""

    rank: int
    rows: slice
    cols: slice
    array: MappedArray


class _Memory:
    """The memory of a shard for NumPy; it keeps the memory mapped as long as an array needs it.

    Arrays refer to it, and not to their Mapping, which refers to them: so the last reference ends a mapping at once.
    """

    def __init__(self, mapping: _agmm.Mapping, name: str, interface: dict[str, Any]) -> None:
        self.mapping = mapping
        self.name = name
        self.__array_interface__ = interface


class Mapping:
    """A tensor's shards on this host, from Client.map: reads and writes of the arrays are reads and writes of the tensor.

    A context manager that ends the mapping. While it lasts, jobs and calls that write the tensor wait; if it is writable,
    readers wait too. The thread that holds it must not wait for any of them. It also ends by commit(), and with its
    client, session, world or daemon. If a writable mapping ends without a commit, the tensor has no contents afterwards.
    """

    __slots__ = ("_client", "_mapping", "tensor", "shards", "__weakref__")

    tensor: Tensor
    """When it was mapped."""
    shards: tuple[Shard, ...]
    """Those of the connected daemon's devices."""

    def __init__(self, client: Client, mapping: _agmm.Mapping, writable: bool, kept: Kept | None) -> None:
        self._client = client
        self._mapping = mapping
        self.tensor = Tensor(client, mapping.tensor, kept)
        self.shards = tuple(self._shard(writable, *fields) for fields in mapping.shards)

    def _shard(self, writable: bool, rank: int, row_begin: int, row_end: int, col_begin: int, col_end: int, pitch_bytes: int,
               address: int) -> Shard:
        dtype = self.tensor.dtype
        memory = _Memory(self._mapping, self.tensor.name, {
            "version": 3,
            "data": (address, not writable),
            "typestr": f"<u{dtype.itemsize}",
            "shape": (row_end - row_begin, col_end - col_begin),
            "strides": (pitch_bytes, dtype.itemsize),
        })
        array = np.asarray(memory).view(dtype).view(MappedArray)
        array._memory = memory
        return Shard(rank, slice(row_begin, row_end), slice(col_begin, col_end), array)

    @property
    def array(self) -> MappedArray:
        """The whole tensor, if one shard is. Errors: FailedPrecondition if it is split."""
        for shard in self.shards:
            if shard.array.shape == self.tensor.shape:
                return shard.array
        raise errors.FailedPrecondition(
            f"tensor {self.tensor.name!r} is split into shards ({self.tensor.sharding}); use `shards`, which have its parts")

    @property
    def detached(self) -> bool:
        """True once the mapping has ended."""
        return self._mapping.detached

    def commit(self, *, timeout: float | None = None) -> Tensor:
        """Makes the shards the tensor's contents, ends the mapping, and returns the tensor with its new version.

        No thread may be writing to the shards. Errors: FailedPrecondition if the mapping is read-only or committed;
        Cancelled, Aborted or Unavailable if it had ended; DeadlineExceeded if the outcome is not known.
        """
        return Tensor(self._client, self._mapping.commit(to_ms(timeout)), self.tensor._kept)

    def close(self) -> None:
        """Ends the mapping. A writable one that was not committed leaves the tensor without contents."""
        self._mapping.detach()

    def __enter__(self) -> Mapping:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"Mapping({self.tensor!r}{', detached' if self.detached else ''})"
