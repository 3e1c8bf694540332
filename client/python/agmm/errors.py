"""Exceptions, one class for each code of the library.

Every message is one line: the value, the bound and the next action. Those of a private daemon may end with its log.
"""

from __future__ import annotations

import errno
import re


class Error(Exception):
    """The base of all errors of this package.

    code: the name of the status code, such as "NOT_FOUND".
    reason: for programs: PEER_LOST, WORLD_INCOMPLETE, HEAP_FULL, TRANSFERS_FULL, QUOTA_FULL, CANCELLED, DEADLINE,
        FILE_NOT_FOUND, or empty.
    """

    code: str = "UNKNOWN"
    reason: str

    def __init__(self, message: str = "", reason: str = "") -> None:
        super().__init__(message)
        self.reason = reason

    def __reduce__(self) -> tuple[type[Error], tuple[str, str]]:
        return type(self), (str(self), self.reason)


class Cancelled(Error):
    """The job or the transfer was cancelled."""

    code = "CANCELLED"


class Unknown(Error):
    """An error of another kind."""


class InvalidArgument(Error, ValueError):
    """The request is wrong in any state of the world. For a file that does not exist, it is a FileNotFoundError, too."""

    code = "INVALID_ARGUMENT"


class MissingFile(InvalidArgument, FileNotFoundError):
    """A file, or the folder for one, does not exist (reason FILE_NOT_FOUND)."""

    def __init__(self, message: str = "", reason: str = "") -> None:
        super().__init__(message, reason)
        self.errno = errno.ENOENT


class DeadlineExceeded(Error, TimeoutError):
    """The job's timeout (reason DEADLINE) or the call's timeout (no reason) passed."""

    code = "DEADLINE_EXCEEDED"


class NotFound(Error, LookupError):
    """There is no tensor with this name, or no job with this id."""

    code = "NOT_FOUND"


class AlreadyExists(Error):
    """A tensor with this name already exists."""

    code = "ALREADY_EXISTS"


class PermissionDenied(Error, PermissionError):
    """The daemon does not allow this call."""

    code = "PERMISSION_DENIED"


class ResourceExhausted(Error, MemoryError):
    """Device memory (reason HEAP_FULL), memory for transfers or a quota is full."""

    code = "RESOURCE_EXHAUSTED"


class FailedPrecondition(Error):
    """The state does not allow the call: a tensor without contents, a closed client, a forked child."""

    code = "FAILED_PRECONDITION"


class Aborted(Error):
    """A daemon was lost (reason PEER_LOST): submit again once it is back."""

    code = "ABORTED"


class OutOfRange(Error):
    """A value is out of range."""

    code = "OUT_OF_RANGE"


class Unimplemented(Error, NotImplementedError):
    """Not possible: no plan exists for the job, the daemon is older than the package, or a gradient is required."""

    code = "UNIMPLEMENTED"


class Internal(Error):
    """A defect of agmm."""

    code = "INTERNAL"


class Unavailable(Error, ConnectionError):
    """No daemon answers, or the world waits for other daemons (reason WORLD_INCOMPLETE)."""

    code = "UNAVAILABLE"


class DataLoss(Error):
    """Bytes arrived damaged, or a file changed while it was read."""

    code = "DATA_LOSS"


class Unauthenticated(Error):
    """The daemon does not know the caller."""

    code = "UNAUTHENTICATED"


# By the number of the code, from 1.
_CLASSES: tuple[type[Error], ...] = (
    Cancelled, Unknown, InvalidArgument, DeadlineExceeded, NotFound, AlreadyExists, PermissionDenied, ResourceExhausted,
    FailedPrecondition, Aborted, OutOfRange, Unimplemented, Internal, Unavailable, DataLoss, Unauthenticated,
)


# Advice for the time after the loss of a private daemon, by its socket.
_advice: dict[str, str] = {}


def advise(socket: str, advice: str | None) -> None:
    """Has errors of a lost daemon end with `advice`, in place of what is true of other daemons; None: no more."""
    if advice is None:
        _advice.pop(socket, None)
    else:
        _advice[socket] = advice


def _advised(message: str) -> str:
    found = re.search(r"\bunix:(\S+)", message)
    advice = None if found is None else _advice.get(found[1])
    return message if advice is None else f"{message.partition('; ')[0]}; {advice}"


def from_status(code: int, message: str, reason: str) -> Error:
    """Returns the exception for an error of the C++ library."""
    found = _CLASSES[code - 1] if 1 <= code <= len(_CLASSES) else Unknown
    advised = _advised(message)
    if found in (Unavailable, Cancelled) and advised != message:
        found, message = Unavailable, advised  # a daemon that stops cancels its calls
    if found is InvalidArgument and reason == "FILE_NOT_FOUND":
        found = MissingFile
    return found(message, reason)
