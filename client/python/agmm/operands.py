"""Operands of products with a resident weight: tensors for X and Y that calls take in turn and keep mapped."""

from __future__ import annotations

import dataclasses
import itertools
import secrets
import threading
import weakref
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from . import errors
from .job_info import JobInfo
from .product import operands_of
from .tensor import Kept, Tensor

if TYPE_CHECKING:
    from .client import Client
    from .mapping import Mapping

_PREFIX = f"agmm.operands.{secrets.token_hex(8)}"
_numbers = itertools.count(1)


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

    def __init__(self, client: Client, shape: Shape, mapped: bool) -> None:
        """Makes X. `mapped`: maps it, if it can be; ResourceExhausted stands for too little memory only."""
        self._client = client
        self.shape = shape
        number = next(_numbers)
        self._x, self._y = (f"{_PREFIX}.{number}.{operand}" for operand in "xy")
        self._kept = [Kept(client._dropped, self._x), Kept(client._dropped, self._y)]
        (_, self._sharding), _, _ = operands_of(shape.spec)
        self._mapped_x: Mapping | None = None
        self._mapped_y: Mapping | None = None
        if mapped:
            client.create(self._x, (shape.rows, shape.in_features), self._sharding, dtype=shape.dtype, mesh=shape.mesh,
                          ranks=shape.ranks)
            try:
                self._mapped_x = client.map(self._x, writable=True)
            except (errors.FailedPrecondition, errors.ResourceExhausted):
                pass  # over TCP, with devices of other hosts, or with more mappings than the daemon allows

    @property
    def mapped(self) -> bool:
        """True if X and Y pass through mappings, false if they are put and fetched."""
        return self._mapped_x is not None

    def multiply(self, weight: Tensor, x: np.ndarray[Any, Any], y: np.ndarray[Any, Any]) -> JobInfo:
        """Computes y = x W, of shape.dtype or the spec's. Errors: those of Client.run."""
        if self._mapped_x is None:
            self._client.put(self._x, x, self._sharding, mesh=self.shape.mesh, ranks=self.shape.ranks)
        else:
            self._mapped_x.renew()
            self._mapped_x.write(x)
            self._mapped_x.commit()
        job = self._client.run(self.shape.spec, tensors={"X": self._x, "W": weight, "Y": self._y}, mesh=self.shape.mesh,
                               ranks=self.shape.ranks)
        self._fetch(y)
        return job

    def _fetch(self, y: np.ndarray[Any, Any]) -> None:
        if self._mapped_x is not None and self._mapped_y is None:
            try:
                self._mapped_y = self._client.map(self._y)
            except errors.ResourceExhausted:
                self._mapped_x = None
        if self._mapped_y is None:
            self._client.get(self._y, out=y)
            return
        self._mapped_y.renew()
        self._mapped_y.read(y)
        self._mapped_y.release()


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
        try:
            return self._multiply(shape, weight, x, y)
        except errors.ResourceExhausted:
            if not self._drop_idle():
                raise
        # Here the exception no longer refers to the operands that failed.
        self._client._sweep()
        return self._multiply(shape, weight, x, y)

    def _multiply(self, shape: Shape, weight: Tensor, x: np.ndarray[Any, Any], y: np.ndarray[Any, Any]) -> tuple[JobInfo, bool]:
        operands = self._take(shape)
        job = operands.multiply(weight, x, y)
        self._give(operands)
        return job, operands.mapped

    def _take(self, shape: Shape) -> Operands:
        """Returns operands that no other call uses."""
        place = (shape.mesh, tuple(shape.ranks))
        with self._mutex:
            for operands in reversed(self._idle):
                if operands.shape == shape:
                    self._idle.remove(operands)
                    return operands
            mapped = place not in self._unmapped
        made = Operands(self._client, shape, mapped)
        if not made.mapped:
            with self._mutex:
                self._unmapped.add(place)
        return made

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
