"""Values that describe the sessions of clients."""

from __future__ import annotations

import dataclasses
import datetime
from typing import Any


@dataclasses.dataclass(frozen=True, slots=True)
class SessionInfo:
    """A client that has a session, and what would end with it.

    number: rises; numbers start at 1 again when node 0's daemon restarts.
    own: True for the session of the client that asked.
    owner: the user of the socket ("uid:1000"), or the address of the client's host.
    program: the name, the process and the host of the client; empty if it has given none.
    node: the name of the node to whose daemon the client is connected.
    open_time: in UTC.
    tensor_count, tensor_bytes: its tensors, and their bytes on all ranks together. Deleted tensors count until their memory
        is free.
    job_count: its queued and running jobs.
    """

    number: int
    own: bool
    owner: str
    program: str
    node: str
    open_time: datetime.datetime
    tensor_count: int
    tensor_bytes: int
    job_count: int


def session_info(fields: tuple[Any, ...]) -> SessionInfo:
    """Returns the session that the extension describes."""
    *texts, seconds, tensor_count, tensor_bytes, job_count = fields
    return SessionInfo(*texts, datetime.datetime.fromtimestamp(seconds, datetime.timezone.utc), tensor_count, tensor_bytes,
                       job_count)
