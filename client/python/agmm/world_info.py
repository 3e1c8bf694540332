"""Values that describe the world of daemons."""

from __future__ import annotations

import dataclasses
from typing import Any


@dataclasses.dataclass(frozen=True, slots=True)
class WorldDevice:
    """A device of the world.

    node: the name of its node.
    kind: "cpu" or "cuda".
    heap_bytes: all of its memory for tensors and workspaces.
    free_bytes: what is free of it.
    largest_free_bytes: the largest contiguous part that is free.
    """

    rank: int
    node: str
    kind: str
    heap_bytes: int
    free_bytes: int
    largest_free_bytes: int


@dataclasses.dataclass(frozen=True, slots=True)
class WorldInfo:
    """A world as one of its daemons sees it.

    version: of the daemon that answered.
    generation: rises whenever a daemon joins or is lost.
    ready: jobs can run; otherwise `reason` says why not.
    devices: of the nodes that have joined.
    """

    cluster: str
    reason: str
    version: str
    generation: int
    ready: bool
    devices: tuple[WorldDevice, ...]


def world_info(fields: tuple[Any, ...]) -> WorldInfo:
    """Returns the world that the extension describes."""
    *rest, devices = fields
    return WorldInfo(*rest, tuple(WorldDevice(*device) for device in devices))
