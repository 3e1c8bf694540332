"""Values that describe jobs."""

from __future__ import annotations

import dataclasses
import datetime
import enum
from typing import Any

import numpy as np

from . import errors
from .dtypes import DTYPES


class JobState(enum.IntEnum):
    """The states of a job. The last three are final."""

    QUEUED = 0
    RUNNING = 1
    SUCCEEDED = 2
    FAILED = 3
    CANCELLED = 4

    def __str__(self) -> str:
        return self.name

    def __format__(self, spec: str) -> str:
        return format(self.name, spec)


_STATES = tuple(JobState)
FINAL_STATES = (JobState.SUCCEEDED, JobState.FAILED, JobState.CANCELLED)


@dataclasses.dataclass(frozen=True, slots=True)
class Moved:
    """Bytes that moved between devices, for one product.

    path: "memory", "host memory" (staged between GPUs of a host) or "network".
    """

    path: str
    bytes: int


@dataclasses.dataclass(frozen=True, slots=True)
class JobFigures:
    """What was measured. Times are in microseconds; 0 if not known.

    time_us: T, one product on its slowest rank; the median if it was repeated.
    gemm_us: T_gemm, arithmetic alone, from the last serial run of the same problem.
    gather_us: T_ag, the gather alone; the fastest one that was measured.
    flop_count: operations of one product on all devices together, 2 M N K; 0 for a job without a product.
    tflops: flop_count / T, in TFLOP/s.
    overlap: R = max(T_gemm, T_ag) / T.
    moved: the bytes that moved between devices for one product, by path.
    baseline_job: the job that T_gemm comes from; 0 if it is not known.
    baseline_stale: says why T_gemm and T_ag may no longer hold for this job; empty if they do.
    """

    time_us: float
    gemm_us: float
    gather_us: float
    flop_count: float
    tflops: float
    overlap: float
    moved: tuple[Moved, ...]
    baseline_job: int
    baseline_stale: str


@dataclasses.dataclass(frozen=True, slots=True, repr=False)
class JobInfo:
    """A job: its state, how it runs and why, and its figures.

    error: set if the job failed or was cancelled.
    m, n, k: the sizes of the product.
    type, result_type: of the inputs, and of C.
    split, algorithm, explanation: how the job runs, and why.
    schedule: its algorithm, or "local" where nothing had to move.
    device_paths: how bytes travel between GPUs.
    device_products: the kernels of GPUs.
    create_time, start_time, end_time: in UTC.
    figures: set once the job has succeeded; zeros before.
    """

    id: int
    state: JobState
    error: errors.Error | None
    m: int
    n: int
    k: int
    type: np.dtype[Any]
    result_type: np.dtype[Any]
    split: str
    algorithm: str
    explanation: str
    schedule: str
    chunk_count: int
    k_chunk_count: int
    workspace_shard_count: int
    repeat_count: int
    carried: bool
    spec: str
    plan_hash: str
    engine: str
    transport: str
    owner: str
    device_paths: tuple[str, ...]
    device_products: tuple[str, ...]
    create_time: datetime.datetime | None
    start_time: datetime.datetime | None
    end_time: datetime.datetime | None
    figures: JobFigures

    def __repr__(self) -> str:
        parts = [f"JobInfo({self.id}", self.state.name, self.algorithm, f"split {self.split}" if self.split else "",
                 f"{self.figures.time_us:.1f} us" if self.figures.time_us else "", repr(self.error) if self.error else ""]
        return ", ".join(filter(None, parts)) + ")"


@dataclasses.dataclass(frozen=True, slots=True)
class JobEvent:
    """A change of a job's state. Numbers start at 1 and rise; the time is in UTC."""

    number: int
    state: JobState
    time: datetime.datetime
    message: str


def _time(seconds: float | None) -> datetime.datetime | None:
    return None if seconds is None else datetime.datetime.fromtimestamp(seconds, datetime.timezone.utc)


def job_info(fields: tuple[Any, ...]) -> JobInfo:
    """Returns the job that the extension describes."""
    (id_, state, error, m, n, k, type_, result_type, *texts, created, started, ended, figures) = fields
    *times, moved, baseline_job, baseline_stale = figures
    return JobInfo(id_, _STATES[state], error, m, n, k, DTYPES[type_], DTYPES[result_type], *texts, _time(created),
                   _time(started), _time(ended),
                   JobFigures(*times, tuple(Moved(*each) for each in moved), baseline_job, baseline_stale))


def job_event(fields: tuple[Any, ...]) -> JobEvent:
    """Returns the event that the extension describes."""
    number, state, seconds, message = fields
    return JobEvent(number, _STATES[state], datetime.datetime.fromtimestamp(seconds, datetime.timezone.utc), message)
