"""Operands of products with a resident weight: tensors for X and Y that calls take in turn and keep mapped."""

from __future__ import annotations

import contextlib
import dataclasses
import threading
import weakref
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from . import errors
from .job_info import JobInfo
from .product import new_name, operands_of
from .tensor import Kept, Tensor

if TYPE_CHECKING:
    from .client import Client
    from .mapping import Mapping

# Raised by the renewal of a mapping whose tensor was deleted, or whose node was lost.
_ENDED = (errors.NotFound, errors.Aborted, errors.Cancelled, errors.Unavailable)


@dataclasses.dataclass(frozen=True)
class Shape:
    """The operands that fit a product: X of rows x in_features, and Y of rows x out_features."""

    spec: str
    """Of a product X * W -> Y."""
    rows: int
    in_features: int
    dtype: np.dtype[Any]
    out_features: int
    mesh: str
    ranks: Sequence[int]


class Operands:
    """X and Y on the devices, for one product at a time. Their owner drops them if a call raises."""

    def __init__(self, client: Client, shape: Shape) -> None:
        self._client = client
        self.shape = shape
        name = new_name("operands")
        self._x, self._y = f"{name}.x", f"{name}.y"
        self._kept = [Kept(client, self._x), Kept(client, self._y)]
        (_, self._sharding), _, _ = operands_of(shape.spec)
        self._mapped_x: Mapping | None = None
        self._mapped_y: Mapping | None = None

    @property
    def mapped(self) -> bool:
        """True if X and Y passed through mappings, false if one of them was put or fetched."""
        return self._mapped_x is not None and self._mapped_y is not None

    def attach(self, mappable: bool) -> bool:
        """Attaches X to its mapping, which it makes first, if need be and if `mappable`.

        Returns false if tensors of this mesh cannot be mapped. Errors: those of Mapping.renew and Client.create.
        """
        if self._mapped_x is not None:
            self._mapped_x.renew()
            return True
        if not mappable:
            return False
        shape = self.shape
        with contextlib.suppress(errors.AlreadyExists):  # a call has put it, when there were too many mappings
            self._client.create(self._x, (shape.rows, shape.in_features), self._sharding, dtype=shape.dtype, mesh=shape.mesh,
                                ranks=shape.ranks)
        try:
            self._mapped_x = self._client.map(self._x, writable=True)
        except errors.ResourceExhausted:
            pass  # more mappings than the daemon allows at a time
        except errors.FailedPrecondition:
            return False  # over TCP, or with devices of other hosts
        return True

    def multiply(self, weight: Tensor, x: np.ndarray[Any, Any], y: np.ndarray[Any, Any]) -> JobInfo:
        """Computes y = x W, of shape.dtype or the spec's, after attach(). Errors: those of Client.run."""
        if self._mapped_x is None:
            self._client.put(self._x, x, self._sharding, mesh=self.shape.mesh, ranks=self.shape.ranks)
        else:
            self._mapped_x.write(x)
            self._mapped_x.commit()
        job = self._client.run(self.shape.spec, tensors={"X": self._x, "W": weight, "Y": self._y}, mesh=self.shape.mesh,
                               ranks=self.shape.ranks)
        if self._mapped_x is None or not self._attach_y():
            self._client.get(self._y, out=y)
        else:
            assert self._mapped_y is not None
            self._mapped_y.read(y)
            self._mapped_y.release()
        return job

    def _attach_y(self) -> bool:
        """Returns false if the daemon allows no more mappings."""
        if self._mapped_y is not None:
            try:
                self._mapped_y.renew()
                return True
            except _ENDED:
                self._mapped_y = None  # the job has made another Y
        try:
            self._mapped_y = self._client.map(self._y)
        except errors.ResourceExhausted:
            return False
        return True

    def drop(self) -> None:
        """Ends the mappings and lists the tensors, even if a traceback refers to this object."""
        self._mapped_x = self._mapped_y = None
        for kept in self._kept:
            kept.drop()  # and once more when it is collected: a call that failed may yet take effect


class Pool:
    """The operands of the layers of one client. Thread-safe.

    Layers that follow each other share operands of one shape, and threads do not wait for each other. Few that are idle
    are kept: the oldest go first. All go with the last layer that refers to the pool.
    """

    _MAX_IDLE = 8
    _pools: weakref.WeakValueDictionary[int, Pool] = weakref.WeakValueDictionary()
    _lock = threading.Lock()  # of _pools

    @classmethod
    def of(cls, client: Client) -> Pool:
        """Returns the pool of the client, which it keeps alive."""
        with cls._lock:
            pool = cls._pools.get(id(client))
            if pool is None:
                pool = cls._pools[id(client)] = cls(client)
            return pool

    def __init__(self, client: Client) -> None:
        self._client = client
        self._mutex = threading.Lock()
        self._idle: list[Operands] = []  # the oldest first
        self._unmapped: set[tuple[str, tuple[int, ...]]] = set()  # meshes and ranks whose tensors could not be mapped

    def multiply(self, shape: Shape, weight: Tensor, x: np.ndarray[Any, Any], y: np.ndarray[Any, Any]) -> tuple[JobInfo, bool]:
        """Computes y = x W. Returns the job, and true if x and y passed through mappings. Errors: those of Client.run."""
        if self._client.closed:
            raise errors.FailedPrecondition(f"the client of weight {weight.name!r} is closed; connect again, and make the layer "
                                            "with the new client")
        try:
            return self._multiply(shape, weight, x, y)
        except errors.ResourceExhausted:
            if not self._drop_idle():
                raise
        self._client._sweep()
        return self._multiply(shape, weight, x, y)

    def _multiply(self, shape: Shape, weight: Tensor, x: np.ndarray[Any, Any], y: np.ndarray[Any, Any]) -> tuple[JobInfo, bool]:
        operands = self._attached(shape)
        try:
            job = operands.multiply(weight, x, y)
        except BaseException:
            operands.drop()
            raise
        self._give(operands)
        return job, operands.mapped

    def _attached(self, shape: Shape) -> Operands:
        """Returns operands that no other call uses. Drops idle ones that have ended: by a deletion, or with a node."""
        while True:
            idle = self._take_idle(shape)
            operands = idle or Operands(self._client, shape)
            try:
                self._attach(operands)
                return operands
            except BaseException as error:
                operands.drop()
                if idle is None or not isinstance(error, _ENDED):
                    raise

    def _attach(self, operands: Operands) -> None:
        place = (operands.shape.mesh, tuple(operands.shape.ranks))
        with self._mutex:
            mappable = place not in self._unmapped
        if not operands.attach(mappable):
            with self._mutex:
                self._unmapped.add(place)

    def _take_idle(self, shape: Shape) -> Operands | None:
        with self._mutex:
            for operands in reversed(self._idle):
                if operands.shape == shape:
                    self._idle.remove(operands)
                    return operands
        return None

    def _give(self, operands: Operands) -> None:
        """Keeps the operands for the next call."""
        with self._mutex:
            self._idle.append(operands)
            oldest = self._idle.pop(0) if len(self._idle) > self._MAX_IDLE else None
        if oldest is not None:
            del oldest
            self._client._sweep()

    def _drop_idle(self) -> bool:
        """Drops the idle operands. Returns false if there are none."""
        with self._mutex:
            found = bool(self._idle)
            self._idle.clear()
        return found
