"""Jobs."""

from __future__ import annotations

import concurrent.futures
import contextlib
import queue
import weakref
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, NoReturn

from . import _agmm, arguments, errors
from .job_info import FINAL_STATES, JobEvent, JobInfo, JobState, job_event, job_info
from .timeouts import to_ms

if TYPE_CHECKING:
    from .client import Client


INTERRUPTED_CANCEL_S = 2.0


class _Watch:
    """Events on their way from the client's thread; then the error, or None."""

    def __init__(self) -> None:
        self.queue: queue.SimpleQueue[JobEvent | Exception | None] = queue.SimpleQueue()
        self.wanted = True

    def on_event(self, fields: tuple[Any, ...]) -> bool:
        self.queue.put(job_event(fields))
        return self.wanted

    def on_end(self, fields: tuple[Any, ...] | None, error: Exception | None) -> None:
        self.queue.put(error)


class Job:
    """A submitted job. Thread-safe; it keeps its client open."""

    __slots__ = ("_client", "_job", "__weakref__")

    def __init__(self, client: Client, job: _agmm.Job) -> None:
        self._client = client
        self._job = job

    @property
    def id(self) -> int:
        """Starts at 1 again when node 0's daemon restarts."""
        return self._job.id

    def wait(self, timeout: float | None = None) -> JobInfo:
        """Waits for the job to succeed and returns its JobInfo. C has its contents then.

        timeout: seconds; None: the job's own plus a call's.
        Errors: the job's own, with a reason (Aborted PEER_LOST, Cancelled CANCELLED, DeadlineExceeded DEADLINE);
        DeadlineExceeded without a reason if the wait times out and the job goes on; Unavailable. An interrupt (Ctrl-C)
        cancels the job.
        """
        return job_info(self._job.wait(to_ms(timeout)))

    def info(self, *, timeout: float | None = None) -> JobInfo:
        """Returns the job in its current state, even if it failed. Errors: NotFound if its record is no longer kept."""
        return job_info(self._job.info(to_ms(timeout)))

    def cancel(self, *, timeout: float | None = None) -> None:
        """Requests cancellation, without waiting for the job's end. Does nothing if it has ended."""
        self._job.cancel(to_ms(timeout))

    def trace(self, *, timeout: float | None = None) -> str:
        """Returns the times of the job's steps, as JSON in Chrome's trace event format, which Perfetto reads.

        They are those of the last epoch of a job that has ended, or of the one in progress. Errors: FailedPrecondition if
        the job is queued, or its times are no longer kept.
        """
        return self._job.trace(to_ms(timeout))

    def done(self, timeout: float | None = None) -> concurrent.futures.Future[JobInfo]:
        """Returns a future with what wait() returns or raises. It needs no thread; cancelling it does not cancel the job.

        Callbacks of the future run on the client's thread, one at a time. They may make calls, but neither close the client
        nor wait for another future of it.
        """
        future: concurrent.futures.Future[JobInfo] = concurrent.futures.Future()

        def end(fields: tuple[Any, ...] | None, error: Exception | None) -> None:
            if not future.set_running_or_notify_cancel():
                return
            if error is not None:
                future.set_exception(error)
                return
            try:
                assert fields is not None
                info = job_info(fields)
            except BaseException as raised:
                future.set_exception(raised)
            else:
                future.set_result(info)

        self._job.then(end, to_ms(timeout))
        return future

    def watch(self, after_event: int = 0, *, timeout: float | None = None) -> Iterator[JobEvent]:
        """Returns an iterator over the changes of the job's state, until its last one.

        after_event: events numbered above this one; 0: from the first.
        timeout: seconds for the whole watch; None: the job's own plus a call's.
        Errors, from the iterator: DeadlineExceeded; Unavailable; Aborted. A job that fails ends the iteration: its last
        event says why, and wait() raises the error. An interrupt (Ctrl-C) cancels the job.
        """
        if _agmm.in_callback():
            raise errors.FailedPrecondition("a callback cannot watch a job: it would hold up a transfer, or the thread that "
                                            "brings the events; use another thread")
        watch = _Watch()
        self._job.watch(watch.on_event, watch.on_end, arguments.whole(after_event, "after_event", 63), to_ms(timeout))
        events = self._events(watch)
        weakref.finalize(events, setattr, watch, "wanted", False).atexit = False  # its block may never begin
        return events

    def _events(self, watch: _Watch) -> Iterator[JobEvent]:
        last = JobState.QUEUED
        try:
            while isinstance(event := watch.queue.get(), JobEvent):
                last = event.state
                yield event
        except GeneratorExit:
            raise
        except BaseException:  # of the handler of a signal
            with contextlib.suppress(errors.Error):  # the handler's exception goes on
                self.cancel(timeout=INTERRUPTED_CANCEL_S)
            raise
        finally:
            watch.wanted = False
        try:
            if event is not None and last not in FINAL_STATES:
                raise event
        finally:
            del event  # it refers to this frame

    def __reduce__(self) -> NoReturn:
        raise TypeError(f"a Job cannot be pickled; send its id, {self.id}, and use Client.job(id) there")

    def __repr__(self) -> str:
        return f"Job({self.id})"
