"""Products of matrices that are sharded over many devices."""

import atexit
import importlib.util
from types import ModuleType

from ._agmm import version
from .client import Client, connect, sweep_all
from .errors import (Aborted, AlreadyExists, Cancelled, DataLoss, DeadlineExceeded, Error, FailedPrecondition, Internal,
                     InvalidArgument, NotFound, OutOfRange, PermissionDenied, ResourceExhausted, Unauthenticated, Unavailable,
                     Unimplemented, Unknown)
from .files import Loaded, LoadedFile, Rule
from .job import Job
from .job_info import JobEvent, JobFigures, JobInfo, JobState, Moved
from .local import local
from .mapping import MappedArray, Mapping, Shard
from .requests import JobOptions
from .session_info import SessionInfo
from .shared import matmul
from .tensor import Tensor
from .world import World, world
from .world_info import WorldDevice, WorldInfo

__version__ = version()

# Registered after the ends of the private daemons and of the extension, so it runs before them.
atexit.register(sweep_all)

_LAZY = ("aio", "jax", "torch")  # modules that are imported by their first use


def __getattr__(name: str) -> ModuleType:
    if name in _LAZY:
        try:
            return importlib.import_module(f".{name}", __name__)
        except ModuleNotFoundError as error:
            raise AttributeError(f"agmm.{name} needs the package {error.name}: pip install {error.name}") from error
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    """Without the modules whose frameworks are missing, because help() reads each name."""
    return [*__all__, *(name for name in _LAZY if name == "aio" or importlib.util.find_spec(name)), "__version__"]


__all__ = [
    "Aborted", "AlreadyExists", "Cancelled", "Client", "DataLoss", "DeadlineExceeded", "Error", "FailedPrecondition",
    "Internal", "InvalidArgument", "Job", "JobEvent", "JobFigures", "JobInfo", "JobOptions", "JobState", "Loaded",
    "LoadedFile", "MappedArray", "Mapping", "Moved", "NotFound", "OutOfRange", "PermissionDenied", "ResourceExhausted",
    "Rule", "SessionInfo", "Shard", "Tensor", "Unauthenticated", "Unavailable", "Unimplemented", "Unknown", "World",
    "WorldDevice", "WorldInfo", "connect", "local", "matmul", "world",
]
