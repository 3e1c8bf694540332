"""Handles of tensors."""

from __future__ import annotations

import re
from types import TracebackType
from typing import TYPE_CHECKING, Any, NoReturn, TypeVar

import numpy as np

from . import errors
from .dtypes import DTYPES, name_of
from .job_info import JobInfo

if TYPE_CHECKING:
    from .client import Client
    from .mapping import Mapping


class Kept:
    """Keeps a tensor without a name of the user's. All its handles share this object, and the last one drops it.

    It only puts the tensor on a list, which the client deletes later: garbage collection must not wait for a daemon. The
    end of a client deletes the tensors that are in use, too.
    """

    def __init__(self, client: Client, reference: str) -> None:
        self._client = client
        self.reference = reference

    @property
    def reference(self) -> str:
        """A name or a handle; empty once the tensor is not this object's, or the client has been closed."""
        return self._client._in_use.get(id(self), "")

    @reference.setter
    def reference(self, reference: str) -> None:
        self._client._in_use[id(self)] = reference

    def drop(self) -> None:
        """Lists the tensor. Has no effect once the reference is empty."""
        if self.reference:
            self._client._dropped.append(self.reference)

    def __del__(self) -> None:
        self.drop()
        self._client._in_use.pop(id(self), None)


class Tensor:
    """A matrix that is spread over devices, as it was when the daemon described it.

    The attributes do not follow later changes: Client.tensor(name) asks again. Calls with a Tensor are about this very
    tensor, even if another one takes its name: they raise NotFound once it is deleted or replaced, and Aborted
    ("PEER_LOST") once node 0's daemon has ended.

    The result of a Client.matmul without `out` belongs to its handles: when Python has dropped the last one, the client's
    next call that may need room for a tensor deletes it. So does the client's close(), or the normal end of the program, if
    the daemon answers.
    """

    __slots__ = ("_client", "id", "name", "shape", "dtype", "sharding", "mesh", "ranks", "has_contents", "shard_bytes",
                 "version", "owner", "of_session", "handle", "job", "_kept", "__weakref__")

    id: int
    """Starts at 1 again when node 0's daemon restarts."""
    name: str
    shape: tuple[int, int]
    """Rows and columns."""
    dtype: np.dtype[Any]
    sharding: str
    """For example "[M_x, K]": rows cut over mesh axis x, columns whole."""
    mesh: str
    """For example "x=4"."""
    ranks: tuple[int, ...]
    """The devices of the mesh."""
    has_contents: bool
    shard_bytes: int
    """On each rank of the mesh."""
    version: int
    """Rises with every change of the contents."""
    owner: str
    """Who made it: the user of the socket, "uid:1000", or the address of the client's host."""
    of_session: bool
    """It is deleted when the client that made it ends."""
    handle: str
    """Stands for this very tensor wherever a call takes a name. A text that any client of the world may use."""
    job: JobInfo | None
    """The job that made it, if Client.matmul returned this Tensor."""

    def __init__(self, client: Client, fields: tuple[Any, ...], kept: Kept | None = None) -> None:
        self._client = client
        (self.id, self.name, rows, cols, type_, self.sharding, self.mesh, self.ranks, self.has_contents, self.shard_bytes,
         self.version, self.owner, self.of_session, self.handle) = fields
        self.shape = (rows, cols)
        self.dtype = DTYPES[type_]
        self.job = None
        self._kept = kept

    def numpy(self, out: Any = None, *, timeout: float | None = None) -> np.ndarray[Any, Any]:
        """Returns the contents: rows x cols, in C order, or in `out`. See Client.get."""
        return self._client.get(self, out=out, timeout=timeout)

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> np.ndarray[Any, Any]:
        """Fetches the contents, for numpy.asarray and the like."""
        if copy is False:
            raise ValueError(f"the contents of tensor {self.name!r} are in the daemon, so an array of them is a copy")
        array = self.numpy()
        return array if dtype is None else array.astype(dtype, copy=False)

    def map(self, writable: bool = False, *, timeout: float | None = None) -> Mapping:
        """Maps the shards into this process's memory. See Client.map."""
        return self._client.map(self, writable=writable, timeout=timeout)

    def delete(self, *, timeout: float | None = None) -> None:
        """Frees the name at once, and the space once no job uses it."""
        self._client.delete(self, timeout=timeout)

    def __reduce__(self) -> NoReturn:
        raise TypeError(f"a Tensor cannot be copied or pickled; send its handle, {self.handle!r}, which stands for it in any client")

    def __repr__(self) -> str:
        return (f"Tensor({self.name!r}, {self.shape[0]} x {self.shape[1]}, {name_of(self.dtype)}, {self.sharding!r}, "
                f"mesh={self.mesh!r}, version={self.version})")


AnyTensor = TypeVar("AnyTensor", bound=Tensor)


class Naming:
    """A block of a call with the tensors `given`. If that of a handle is gone, its NotFound names the tensor."""

    __slots__ = ("_given",)

    def __init__(self, *given: Any) -> None:
        self._given = given

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        if not isinstance(error, errors.NotFound):
            return
        for tensor in self._given:
            if isinstance(tensor, Tensor) and re.search(rf"\btensor #?{tensor.id}\b", str(error)):
                raise errors.NotFound(
                    f"the tensor {tensor.name!r} of this handle is gone: it was deleted, or another one has taken its name; "
                    f"client.tensor({tensor.name!r}) finds that one", error.reason) from None
