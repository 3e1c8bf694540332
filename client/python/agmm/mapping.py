"""Tensors in this process's memory."""

from __future__ import annotations

import dataclasses
from types import TracebackType
from typing import TYPE_CHECKING, Any

import numpy as np

from . import _agmm, arguments, arrays, errors
from .dtypes import name_of
from .tensor import Kept, Tensor
from .timeouts import to_ms

if TYPE_CHECKING:
    from .client import Client


class MappedArray(np.ndarray[Any, Any]):
    """A shard of a tensor, as an ndarray over the tensor's own memory.

    While the mapping is detached, a use raises FailedPrecondition. Views share this, and results of arithmetic are plain
    arrays. Code that reads the memory without this class (numpy.array and numpy.asarray, iterators such as `flat`, buffers,
    other libraries) reads NaN meanwhile.
    """

    _memory: _Memory | None

    def __array_finalize__(self, obj: Any) -> None:
        # A copy owns its memory, and outlives the mapping.
        self._memory = None if np.ndarray.flags.__get__(self).owndata else getattr(obj, "_memory", None)

    def __getattribute__(self, name: str) -> Any:
        if not name.startswith("_"):
            check_attached(self)
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


def check_attached(array: Any) -> None:
    """Raises for a mapped array whose mapping is detached. Other arrays pass."""
    memory = array._memory if isinstance(array, MappedArray) else None
    if memory is not None and memory.mapping.detached:
        raise errors.FailedPrecondition(f"tensor {memory.name!r} is detached from its mapping ({memory.mapping.status})")


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

    def guarded(self: MappedArray, *args: Any, **options: Any) -> Any:
        check_attached(self)
        return method(self, *args, **options)

    guarded.__name__ = name
    guarded.__doc__ = method.__doc__
    return guarded


# Python finds these without __getattribute__, and they do not end in __array_ufunc__.
for _name in ("__getitem__", "__setitem__", "__len__", "__iter__", "__contains__", "__repr__", "__str__", "__format__",
              "__bool__", "__int__", "__float__", "__complex__", "__index__", "__copy__", "__deepcopy__", "__reduce__",
              "__reduce_ex__", "__array__", "__dlpack__"):
    setattr(MappedArray, _name, _guarded(_name))


def _are_same_view(one: np.ndarray[Any, Any], other: np.ndarray[Any, Any]) -> bool:
    return all(getattr(one, name) == getattr(other, name) for name in ("shape", "strides", "dtype")) and (
        one.ctypes.data == other.ctypes.data)


@dataclasses.dataclass(frozen=True)
class Shard:
    """The part of a tensor on one device: rows and columns of the tensor, and their elements."""

    rank: int
    rows: slice
    cols: slice
    array: MappedArray = dataclasses.field(repr=False)


def _extent(shard: Shard) -> tuple[int, int]:
    return (shard.rows.stop - shard.rows.start, shard.cols.stop - shard.cols.start)


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

    A context manager that ends the mapping. Until commit() or release(), jobs and calls that write the tensor wait, and if
    the mapping is writable, readers wait too; the thread that holds it must not wait for any of them. From then on the
    arrays are detached, until renew() attaches the same arrays again: one mapping serves a loop of jobs. Keep only
    one attached at a time: two programs that each keep one attached and wait for the other's wait until their timeouts.

        with client.map("Y") as y:
            y.release()
            with client.map("X", writable=True) as x:
                for batch in batches:
                    x.renew()
                    x.write(batch)
                    x.commit()
                    client.run(spec, "X", "W", "Y")
                    y.renew()
                    use(y.read())
                    y.release()

    A mapping also ends with its client, session, world or daemon, and if the tensor is deleted, once it is detached. If a
    writable mapping ends while it is attached, the tensor has no contents afterwards.
    """

    __slots__ = ("_client", "_mapping", "_writable", "tensor", "shards", "__weakref__")

    tensor: Tensor
    """When it was mapped, or renewed."""
    shards: tuple[Shard, ...]
    """Those of the connected daemon's devices. If several devices have copies of a part, each copy is a shard."""

    def __init__(self, client: Client, mapping: _agmm.Mapping, writable: bool, kept: Kept | None) -> None:
        self._client = client
        self._mapping = mapping
        self._writable = writable
        self.tensor = Tensor(client, mapping.tensor, kept)
        self.shards = tuple(self._shard(*fields) for fields in mapping.shards)

    def _shard(self, rank: int, row_begin: int, row_end: int, col_begin: int, col_end: int, pitch_bytes: int,
               address: int) -> Shard:
        dtype = self.tensor.dtype
        memory = _Memory(self._mapping, self.tensor.name, {
            "version": 3,
            "data": (address, not self._writable),
            "typestr": f"<u{dtype.itemsize}",
            "shape": (row_end - row_begin, col_end - col_begin),
            "strides": (pitch_bytes, dtype.itemsize),
        })
        array = np.asarray(memory).view(dtype).view(MappedArray)
        array._memory = memory
        return Shard(rank, slice(row_begin, row_end), slice(col_begin, col_end), array)

    @property
    def array(self) -> MappedArray:
        """The whole tensor, if one shard is. Errors: FailedPrecondition if it is cut, or if writes have to reach copies."""
        whole = [shard.array for shard in self.shards if _extent(shard) == self.tensor.shape]
        if not whole:
            raise errors.FailedPrecondition(
                f"tensor {self.tensor.name!r} is cut into shards ({self.tensor.sharding}); use `shards`, which have its parts")
        if self._writable and len(whole) > 1:
            raise errors.FailedPrecondition(f"tensor {self.tensor.name!r} has {len(whole)} copies, and each has to be written; "
                                            "use write(), which writes them all, or `shards`")
        return whole[0]

    def write(self, array: Any, *, dtype: Any = None) -> None:
        """Copies an array into the shards: rows x cols of the tensor.

        dtype: the tensor's, which converts the elements, as Client.put does; None: the array must already have it, in any byte order.
        Errors: InvalidArgument for another shape or dtype; FailedPrecondition if the mapping is read-only, or if it, or
        that of a mapped `array`, is detached before the end.
        """
        if not self._writable:
            raise errors.FailedPrecondition(f"tensor {self.tensor.name!r} is mapped for reading; map it with writable=True")
        given = arrays.matrix_of(array)
        if given.shape != self.tensor.shape:
            raise errors.InvalidArgument(f"the array has shape {given.shape}, and tensor {self.tensor.name!r} "
                                         f"{self.tensor.shape}; give one of this shape")
        own = name_of(self.tensor.dtype)
        if arrays.dtype_for(given, self.tensor.dtype if dtype is None else dtype) != self.tensor.dtype:
            raise errors.InvalidArgument(f"dtype is {arguments.shown(dtype)}, and tensor {self.tensor.name!r} has {own}; give "
                                         f'dtype="{own}"')
        if dtype is None and given.dtype.newbyteorder("=") != self.tensor.dtype:
            raise errors.InvalidArgument(f"the array has dtype {given.dtype}, and tensor {self.tensor.name!r} {own}; pass "
                                         f'dtype="{own}" to convert it')
        targets = [_plain(shard.array[:]) for shard in self.shards]
        if any(np.may_share_memory(given, target) and not _are_same_view(given, target) for target in targets):
            given = given.copy()  # else a block that is written may change what is yet to be read
        overflows: list[tuple[str, int]] = []
        for shard, target in zip(self.shards, targets):
            arrays.copy_rounded(target, given[shard.rows, shard.cols], lambda *found: overflows.append(found))
        self._check_copied(array)
        if overflows:
            arguments.warn(f"overflow encountered in cast from {given.dtype} to {own}")

    def read(self, out: Any = None) -> np.ndarray[Any, Any]:
        """Returns a copy of the contents, in C order, or in `out`: an array of the tensor's shape and dtype, of any layout.

        Errors: FailedPrecondition if a part is on another node (use Client.get), or if the mapping is detached before the
        end; InvalidArgument for another `out`.
        """
        shape, dtype = self.tensor.shape, self.tensor.dtype
        parts = {(shard.rows.start, shard.cols.start): shard for shard in self.shards}.values()  # one of each copy
        if sum(rows * cols for rows, cols in map(_extent, parts)) != shape[0] * shape[1]:
            raise errors.FailedPrecondition(f"tensor {self.tensor.name!r} has shards on other nodes; use Client.get")
        taken = np.empty(shape, dtype) if out is None else arrays.check_out(out, shape, dtype)
        for shard in parts:
            np.copyto(taken[shard.rows, shard.cols], shard.array)
        self._check_copied(out)
        return taken if out is None else out

    def _check_copied(self, array: Any) -> None:
        """Raises if this mapping, or that of a mapped `array`, was detached while a copy between the two ran."""
        for each in (array, *(shard.array for shard in self.shards)):
            check_attached(each)

    @property
    def detached(self) -> bool:
        """True after commit(), release() and the end: the arrays are not the tensor's then, and their use raises."""
        return self._mapping.detached

    def commit(self, *, timeout: float | None = None) -> Tensor:
        """Makes the shards the tensor's contents, detaches the arrays, and returns the tensor with its new version.

        No thread may be writing to the shards. Errors: FailedPrecondition if the mapping is read-only, or detached by an
        earlier commit, or if copies of a part differ: the mapping stays as it is then; NotFound, Cancelled, Aborted or
        Unavailable if it had ended; DeadlineExceeded if the outcome is not known: the mapping has ended.
        """
        self._check_copies()
        return self._returned(self._mapping.commit(to_ms(timeout)))

    def _check_copies(self) -> None:
        """Refuses copies that differ in a bit, because a product would take them for the same."""
        if not self._writable or self.detached:
            return
        first: dict[tuple[int, int], Shard] = {}
        for shard in self.shards:
            other = first.setdefault((shard.rows.start, shard.cols.start), shard)
            bits = [each.array.view(np.ndarray).view(f"u{self.tensor.dtype.itemsize}") for each in (shard, other)]
            if shard is not other and not np.array_equal(*bits):
                raise errors.FailedPrecondition(
                    f"the copies of rows {shard.rows.start}:{shard.rows.stop}, columns {shard.cols.start}:{shard.cols.stop} of "
                    f"{self.tensor.name!r} on ranks {other.rank} and {shard.rank} differ; write all of them, as write() does, and "
                    "commit again")

    def release(self, *, timeout: float | None = None) -> Tensor:
        """Detaches the arrays of a read-only mapping, so that writers of the tensor need not wait; returns the tensor.

        Errors: FailedPrecondition if the mapping is writable, or detached by an earlier release; those of commit.
        """
        return self._returned(self._mapping.release(to_ms(timeout)))

    def renew(self, *, timeout: float | None = None) -> Tensor:
        """Waits for the users of the tensor so far, attaches the arrays to its contents again, and returns the tensor.

        Has no effect if the arrays are attached. Errors, after which the mapping has ended: NotFound for a deleted tensor;
        FailedPrecondition for one without contents, if the mapping is read-only; Cancelled, Aborted or Unavailable if it
        had ended; DeadlineExceeded. Ctrl-C ends the mapping.
        """
        self.tensor = self._returned(self._mapping.renew(to_ms(timeout)))
        return self.tensor

    def _returned(self, fields: tuple[Any, ...]) -> Tensor:
        return Tensor(self._client, fields, self.tensor._kept)

    def close(self) -> None:
        """Ends the mapping. A writable one that is attached leaves the tensor without contents.

        Waits for a commit in progress on another thread, or after Ctrl-C; another Ctrl-C ends this wait, too.
        """
        self._mapping.detach()

    def __enter__(self) -> Mapping:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        if kind is None:
            self._warn_of_loss()
        self.close()

    def _warn_of_loss(self) -> None:
        if self._writable and not self.detached:
            arguments.warn(f"the mapping of tensor {self.tensor.name!r} ends without commit(), so the tensor has no contents")

    def __repr__(self) -> str:
        return f"Mapping({self.tensor!r}{', detached' if self.detached else ''})"
