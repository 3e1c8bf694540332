"""The client for asyncio: the same calls as coroutines.

    async with agmm.aio.connect() as client:
        w = await client.put("W", array, "[K, N_x]")
        y = await client.matmul("A[M_x, K] * B[K, N_x] -> C[M, N_x]", x, w)
        print(await y.numpy())

Runs and waits need no thread: the library's callbacks wake the loop. Transfers, short calls, and calls that wait for a
mapping's turn run on threads, at most 32 of each kind at a time for each client and loop. Cancelling a task cancels its
transfer or the job that it waits for.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import contextlib
import gc
import os
import threading
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Generator, Mapping as MappingOf, Sequence
from types import TracebackType
from typing import TYPE_CHECKING, Any, NoReturn, TypeVar

import numpy as np

from . import client as blocking
from . import _agmm, arguments, errors
from .files import Loaded, LoadedFile, Rule
from .job import INTERRUPTED_CANCEL_S, Job
from .job_info import FINAL_STATES, JobEvent, JobInfo, JobState, job_event, job_info
from .mapping import Mapping
from .product import Product
from .requests import job_request, tensors_of
from .session_info import SessionInfo
from .tensor import Naming, Tensor
from .timeouts import to_ms
from .world_info import WorldInfo

if TYPE_CHECKING:
    from typing_extensions import Unpack

    from .client import Progress
    from .requests import JobOptions

__all__ = ["AsyncClient", "AsyncJob", "AsyncMapping", "AsyncTensor", "Connecting", "Opening", "connect"]

T = TypeVar("T")
Opened = TypeVar("Opened", bound="AsyncClient | AsyncMapping")

_THREADS = 32


class _Turns:
    """Limits the threads of one client in one loop.

    Short calls never wait for a turn of the others: those may wait for a job or a mapping, which a short call is to cancel
    or to commit. Transfers do not wait for a turn of the leases: the holder of one may need a transfer before its commit.
    """

    def __init__(self) -> None:
        self.calls = asyncio.Semaphore(_THREADS)
        self.transfers = asyncio.Semaphore(_THREADS)
        self.leases = asyncio.Semaphore(_THREADS)  # calls that wait for the users of a tensor


def connect(endpoint: str | None = None, *, session: bool = False, program: str | None = None,
            call_timeout: float = 30.0, transfer_timeout: float = 600.0) -> Connecting:
    """Connects as agmm.connect does. Await the result for an AsyncClient, or enter it with `async with`."""

    async def make() -> AsyncClient:
        return AsyncClient(await _on_thread(
            lambda: blocking.connect(endpoint, session=session, program=program, call_timeout=call_timeout,
                                     transfer_timeout=transfer_timeout),
            lambda made: made.close()))

    return Connecting(make())


class Opening(Coroutine[Any, Any, Opened]):
    """An awaitable that yields a client or a mapping. `async with` also closes the result."""

    def __init__(self, made: Coroutine[Any, Any, Opened]) -> None:
        self._made = made
        self._opened: list[Opened] = []

    def send(self, value: Any) -> Any:
        return self._made.send(value)

    def throw(self, *error: Any) -> Any:
        return self._made.throw(*error)

    def close(self) -> None:
        self._made.close()

    def __await__(self) -> Generator[Any, None, Opened]:
        return self._made.__await__()

    def __enter__(self) -> NoReturn:
        self.close()
        raise TypeError("this is a coroutine; enter it with `async with`")

    def __exit__(self, *_: Any) -> None:
        """Lets `with` find __enter__."""

    async def __aenter__(self) -> Opened:
        self._opened.append(await self._made)
        return self._opened[0]

    async def __aexit__(self, kind: type[BaseException] | None, error: BaseException | None,
                        trace: TracebackType | None) -> None:
        await self._opened.pop().__aexit__(kind, error, trace)


class Connecting(Opening["AsyncClient"]):
    """A connection to be made, from agmm.aio.connect."""

    def __getattr__(self, name: str) -> Any:
        raise AttributeError(f"agmm.aio.connect has yet to connect, so it has no {name!r}; write `client = await "
                             "agmm.aio.connect(...)`, or `async with agmm.aio.connect(...) as client`")


class AsyncClient:
    """A connection, from agmm.aio.connect. Its methods are those of agmm.Client, as coroutines.

    Tasks may share it, and so may threads, each with a loop of its own. A call that has taken effect on the daemon stays in
    effect if its task is cancelled.
    """

    def __init__(self, client: blocking.Client) -> None:
        self._client = client
        self._lock = threading.Lock()
        self._turns_of_loops: dict[asyncio.AbstractEventLoop, _Turns] = {}

    async def __aenter__(self) -> AsyncClient:
        return self

    async def __aexit__(self, kind: type[BaseException] | None, error: BaseException | None,
                        trace: TracebackType | None) -> None:
        await self.close()

    async def close(self) -> None:
        """Ends calls in progress, whose tasks get errors (agmm.Cancelled or agmm.FailedPrecondition; agmm.NotFound for a tensor
        of the session), and mappings."""
        await _on_thread(self._client.close)

    @property
    def closed(self) -> bool:
        """True after close()."""
        return self._client.closed

    @property
    def endpoint(self) -> str:
        """See agmm.Client.endpoint."""
        return self._client.endpoint

    async def world(self, *, timeout: float | None = None) -> WorldInfo:
        """See agmm.Client.world."""
        return await self._call(lambda: self._client.world(timeout=timeout))

    async def sessions(self, *, timeout: float | None = None) -> list[SessionInfo]:
        """See agmm.Client.sessions."""
        return await self._call(lambda: self._client.sessions(timeout=timeout))

    # ---- Tensors ----

    async def put(self, name: str, array: Any, sharding: str, *, mesh: str = "", ranks: Sequence[int] = (), dtype: Any = None,
                  progress: Progress | None = None, timeout: float | None = None) -> AsyncTensor:
        """See agmm.Client.put. The array must not change until the task ends."""
        tensor, overflow = await self._transfer(
            lambda stop: self._client._put(name, array, sharding, mesh, ranks, dtype, progress, timeout, stop))
        if overflow:
            arguments.warn(overflow)  # here, because a thread does not know the user's line
        return self._tensor(tensor)

    async def fill(self, name: str, shape: Sequence[int], sharding: str, *, kind: str = "uniform", seed: int = 0,
                   value: float = 0.0, dtype: Any = "f32", mesh: str = "", ranks: Sequence[int] = (),
                   timeout: float | None = None) -> AsyncTensor:
        """See agmm.Client.fill."""
        return self._tensor(await self._lease(lambda: self._client.fill(
            name, shape, sharding, kind=kind, seed=seed, value=value, dtype=dtype, mesh=mesh, ranks=ranks, timeout=timeout)))

    async def create(self, name: str, shape: Sequence[int], sharding: str, *, dtype: Any = "f32", mesh: str = "",
                     ranks: Sequence[int] = (), timeout: float | None = None) -> AsyncTensor:
        """See agmm.Client.create."""
        return self._tensor(await self._call(lambda: self._client.create(
            name, shape, sharding, dtype=dtype, mesh=mesh, ranks=ranks, timeout=timeout)))

    async def get(self, tensor: Tensor | str, *, out: Any = None, progress: Progress | None = None,
                  timeout: float | None = None) -> np.ndarray[Any, Any]:
        """See agmm.Client.get."""
        return await self._transfer(lambda stop: self._client._get(tensor, out, progress, timeout, stop))

    def map(self, tensor: Tensor | str, *, writable: bool = False, timeout: float | None = None) -> Opening[AsyncMapping]:
        """See agmm.Client.map. Await the result, or enter it: `async with client.map("X") as mapping`."""

        async def make() -> AsyncMapping:
            return AsyncMapping(self, await self._stopping(
                self._lease, lambda stop: self._client._map(tensor, writable, timeout, stop),
                lambda mapping: mapping._mapping.give_back()))

        return Opening(make())

    async def load(self, path: str | os.PathLike[str], shard: MappingOf[str, Rule | str | None], *, strict: bool = False,
                   progress: Progress | None = None, timeout: float | None = None) -> LoadedFile[AsyncTensor]:
        """See agmm.Client.load."""
        file = await self._transfer(lambda stop: self._client._load(path, shard, strict, progress, timeout, stop))
        loaded = [Loaded(each.name_in_file, self._tensor(each.tensor), each.bytes, each.seconds) for each in file.loaded]
        return LoadedFile(loaded, file.skipped, file.unused_patterns)

    async def save(self, path: str | os.PathLike[str], tensors: Sequence[Tensor | str], *,
                   metadata: MappingOf[str, str] | None = None, progress: Progress | None = None,
                   timeout: float | None = None) -> list[AsyncTensor]:
        """See agmm.Client.save."""
        saved = await self._transfer(lambda stop: self._client._save(path, tensors, metadata, progress, timeout, stop))
        return [self._tensor(each) for each in saved]

    async def tensors(self, *, timeout: float | None = None) -> list[AsyncTensor]:
        """See agmm.Client.tensors."""
        return [self._tensor(each) for each in await self._call(lambda: self._client.tensors(timeout=timeout))]

    async def tensor(self, name: str, *, timeout: float | None = None) -> AsyncTensor:
        """See agmm.Client.tensor."""
        return self._tensor(await self._call(lambda: self._client.tensor(name, timeout=timeout)))

    async def delete(self, tensor: Tensor | str, *, timeout: float | None = None) -> None:
        """See agmm.Client.delete."""
        await self._call(lambda: self._client.delete(tensor, timeout=timeout))

    # ---- Jobs ----

    async def submit(self, spec: str, a: Tensor | str | None = None, b: Tensor | str | None = None,
                     c: Tensor | str | None = None, **options: Unpack[JobOptions]) -> AsyncJob:
        """See agmm.Client.submit. If the task is cancelled, so is the job."""
        return AsyncJob(self, await self._stopping(
            self._call, lambda stop: self._client._submit(spec, a, b, c, options, stop), lambda job: job.cancel()))

    async def run(self, spec: str, a: Tensor | str | None = None, b: Tensor | str | None = None,
                  c: Tensor | str | None = None, **options: Unpack[JobOptions]) -> JobInfo:
        """See agmm.Client.run. If the task is cancelled, so is the job."""
        request = job_request(spec, a, b, c, options)
        with Naming(*tensors_of(a, b, c, options)):
            return await self._run(request)

    async def _run(self, request: _agmm.JobRequest) -> JobInfo:
        """See agmm.Client._with_room."""
        await self._sweep()
        try:
            return await self._run_once(request)
        except errors.ResourceExhausted:
            gc.collect()
            if not self._client._dropped:
                raise
        await self._sweep()
        return await self._run_once(request)

    async def _run_once(self, request: _agmm.JobRequest) -> JobInfo:
        stop = _agmm.Stop()
        try:
            return job_info(await _called_back(lambda end: self._client._client.run_then(request, end, 0, stop)))
        except asyncio.CancelledError:
            stop.request()
            raise

    async def matmul(self, spec: str, a: Any, b: Any, *, out: Tensor | str | None = None, dtype: Any = None,
                     **options: Unpack[JobOptions]) -> AsyncTensor:
        """See agmm.Client.matmul. If the task is cancelled, so is the job."""
        await self._sweep(timeout=None)
        try:
            with Product(self._client, spec, a, b, out, dtype, dict(options)) as product:
                for put in product.puts:
                    await self.put(*put, **product.places)
                return product.result(await self.run(spec, **product.options), await self.tensor(product.out))
        finally:
            await self._sweep()

    async def job(self, id: int, *, timeout: float | None = None) -> AsyncJob:
        """See agmm.Client.job."""
        return AsyncJob(self, await self._call(lambda: self._client.job(id, timeout=timeout)))

    async def jobs(self, limit: int = 100, *, timeout: float | None = None) -> list[JobInfo]:
        """See agmm.Client.jobs."""
        return await self._call(lambda: self._client.jobs(limit, timeout=timeout))

    def __repr__(self) -> str:
        return f"<agmm.aio.AsyncClient of {self._client!r}>"

    def _turns(self) -> _Turns:
        loop = asyncio.get_running_loop()
        with self._lock:
            if loop not in self._turns_of_loops:
                for closed in [each for each in self._turns_of_loops if each.is_closed()]:
                    del self._turns_of_loops[closed]
                self._turns_of_loops[loop] = _Turns()
            return self._turns_of_loops[loop]

    def _tensor(self, tensor: Tensor) -> AsyncTensor:
        return AsyncTensor(self, tensor)

    async def _call(self, call: Callable[[], T], undo: Callable[[T], object] | None = None) -> T:
        return await _in_turn(self._turns().calls, call, undo)

    async def _lease(self, call: Callable[[], T], undo: Callable[[T], object] | None = None) -> T:
        return await _in_turn(self._turns().leases, call, undo)

    async def _stopping(self, turn: Callable[..., Awaitable[T]], call: Callable[[_agmm.Stop], T],
                        undo: Callable[[T], object]) -> T:
        """Awaits `call` in a turn. If the task is cancelled, stops the call; `undo` gets a result that comes all the same."""
        stop = _agmm.Stop()
        try:
            return await turn(lambda: call(stop), undo)
        except asyncio.CancelledError:
            stop.request()
            raise

    async def _sweep(self, **options: Any) -> None:
        if self._client._dropped:
            await self._call(lambda: self._client._sweep(**options))

    async def _transfer(self, move: Callable[[_agmm.Stop], T]) -> T:
        """Runs a transfer. If its task is cancelled, stops it, and waits for its end: its array is in use until then."""
        stop = _agmm.Stop()
        async with self._turns().transfers:
            moving = asyncio.wrap_future(_start(lambda: move(stop)))
            try:
                await asyncio.wait([moving])
            except asyncio.CancelledError:
                stop.request()
                while not moving.done():
                    with contextlib.suppress(asyncio.CancelledError):  # a task may be cancelled more than once
                        await asyncio.wait([moving])
                moving.exception()  # marks it as seen
                raise
            try:
                return moving.result()
            finally:
                del moving  # an exception refers to this frame


class AsyncTensor(Tensor):
    """A handle of a tensor, as agmm.Tensor. Its methods are coroutines."""

    __slots__ = ("_async_client",)

    def __init__(self, client: AsyncClient, tensor: Tensor) -> None:
        for name in Tensor.__slots__:
            if name != "__weakref__":
                setattr(self, name, getattr(tensor, name))
        self._async_client = client

    async def numpy(self, out: Any = None, *, timeout: float | None = None) -> np.ndarray[Any, Any]:  # type: ignore[override]
        """Returns the contents. See agmm.Client.get."""
        return await self._async_client.get(self, out=out, timeout=timeout)

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> np.ndarray[Any, Any]:
        raise TypeError(f"the contents of tensor {self.name!r} are in the daemon; use `await tensor.numpy()`")

    def map(self, writable: bool = False, *, timeout: float | None = None) -> Opening[AsyncMapping]:  # type: ignore[override]
        """Maps the shards into this process's memory. See agmm.aio.AsyncClient.map."""
        return self._async_client.map(self, writable=writable, timeout=timeout)

    async def delete(self, *, timeout: float | None = None) -> None:  # type: ignore[override]
        """Frees the name at once, and the space once no job uses it."""
        await self._async_client.delete(self, timeout=timeout)


class AsyncMapping(Mapping):
    """A tensor's shards in this process's memory, as agmm.Mapping. The methods that ask the daemon are coroutines.

    `async with client.map("X") as mapping` makes and ends one. If the task of a commit() or a release() is cancelled, the call
    goes on; if that of a renew() is, the mapping has ended.
    """

    __slots__ = ("_async_client", "_left")

    tensor: AsyncTensor

    def __init__(self, client: AsyncClient, mapping: Mapping) -> None:
        for name in Mapping.__slots__:
            if name != "__weakref__":
                setattr(self, name, getattr(mapping, name))
        self._async_client = client
        self.tensor = client._tensor(mapping.tensor)
        self._left = False  # a call goes on whose task was cancelled

    async def commit(self, *, timeout: float | None = None) -> AsyncTensor:  # type: ignore[override]
        """See agmm.Mapping.commit."""
        return await self._ask(self._async_client._turns().calls, super().commit, timeout)

    async def release(self, *, timeout: float | None = None) -> AsyncTensor:  # type: ignore[override]
        """See agmm.Mapping.release."""
        return await self._ask(self._async_client._turns().calls, super().release, timeout)

    async def renew(self, *, timeout: float | None = None) -> AsyncTensor:  # type: ignore[override]
        """See agmm.Mapping.renew."""
        try:
            return await self._ask(self._async_client._turns().leases, super().renew, timeout)
        except asyncio.CancelledError:
            self.close()
            raise

    def _returned(self, fields: tuple[Any, ...]) -> AsyncTensor:
        return self._async_client._tensor(super()._returned(fields))

    async def _ask(self, turns: asyncio.Semaphore, call: Callable[..., Tensor], timeout: float | None) -> AsyncTensor:
        await turns.acquire()  # a cancellation until then leaves no call
        try:
            tensor = await _on_thread(lambda: call(timeout=timeout), turns=turns)
        except asyncio.CancelledError:
            self._left = True
            raise
        self._left = False
        return tensor

    def close(self) -> None:
        """See agmm.Mapping.close. If a call goes on whose task was cancelled, the mapping ends after it, and the loop does not
        wait for that; `async with` does."""
        if self._left:
            _start(super().close)
        else:
            super().close()

    async def __aenter__(self) -> AsyncMapping:
        return self

    async def __aexit__(self, kind: type[BaseException] | None, error: BaseException | None,
                        trace: TracebackType | None) -> None:
        if kind is None:
            self._warn_of_loss()
        await self._async_client._call(super().close)


class AsyncJob:
    """A submitted job. `await job` waits for it, as job.wait() does."""

    def __init__(self, client: AsyncClient, job: Job) -> None:
        self._client = client
        self._job = job

    @property
    def id(self) -> int:
        """See agmm.Job.id."""
        return self._job.id

    def __await__(self) -> Generator[Any, None, JobInfo]:
        return self.wait().__await__()

    async def wait(self, timeout: float | None = None) -> JobInfo:
        """See agmm.Job.wait. If the task is cancelled, so is the job."""
        try:
            return job_info(await _called_back(lambda end: self._job._job.then(end, to_ms(timeout))))
        except asyncio.CancelledError:
            await self._cancel_quietly()
            raise

    async def info(self, *, timeout: float | None = None) -> JobInfo:
        """See agmm.Job.info."""
        return await self._client._call(lambda: self._job.info(timeout=timeout))

    async def trace(self, *, timeout: float | None = None) -> str:
        """See agmm.Job.trace."""
        return await self._client._call(lambda: self._job.trace(timeout=timeout))

    async def cancel(self, *, timeout: float | None = None) -> None:
        """See agmm.Job.cancel."""
        await self._client._call(lambda: self._job.cancel(timeout=timeout))

    def watch(self, after_event: int = 0, *, timeout: float | None = None) -> AsyncIterator[JobEvent]:
        """Returns an iterator over the changes of the job's state, which begins with its first use. See agmm.Job.watch. If the
        task is cancelled while it waits for a change, so is the job."""
        return self._events(arguments.whole(after_event, "after_event", 63), to_ms(timeout))

    async def _events(self, after_event: int, timeout_ms: int) -> AsyncIterator[JobEvent]:
        loop = asyncio.get_running_loop()
        events: asyncio.Queue[tuple[JobEvent | None, errors.Error | None]] = asyncio.Queue()
        leaving = threading.Event()

        def on_event(fields: tuple[Any, ...]) -> bool:
            _tell(loop, events.put_nowait, (job_event(fields), None))
            return not leaving.is_set()

        def on_end(_: tuple[Any, ...] | None, error: errors.Error | None) -> None:
            _tell(loop, events.put_nowait, (None, error))

        self._job._job.watch(on_event, on_end, after_event, timeout_ms)
        last = JobState.QUEUED
        try:
            while True:
                event, error = await events.get()
                if event is None:
                    break
                last = event.state
                yield event
        except asyncio.CancelledError:
            await self._cancel_quietly()
            raise
        finally:
            leaving.set()
        try:
            if error is not None and last not in FINAL_STATES:
                raise error
        finally:
            del error  # it refers to this frame

    async def _cancel_quietly(self) -> None:
        """Cancels the job. A daemon that does not answer holds it up for INTERRUPTED_CANCEL_S."""

        async def cancel() -> None:
            with contextlib.suppress(errors.Error):
                await self.cancel(timeout=INTERRUPTED_CANCEL_S)

        cancelling = asyncio.ensure_future(cancel())
        try:
            await asyncio.wait([cancelling], timeout=INTERRUPTED_CANCEL_S)
        finally:
            cancelling.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await cancelling

    def __repr__(self) -> str:
        return f"AsyncJob({self.id})"


def _tell(loop: asyncio.AbstractEventLoop, call: Callable[..., object], *arguments: Any) -> None:
    # After the loop's end no task waits.
    with contextlib.suppress(RuntimeError):
        loop.call_soon_threadsafe(call, *arguments)


def _settle(future: asyncio.Future[Any], result: Any, error: BaseException | None) -> None:
    if future.done():
        return  # its task was cancelled
    if error is not None:
        future.set_exception(error)
    else:
        future.set_result(result)


def _called_back(start: Callable[[Callable[[Any, errors.Error | None], None]], object]) -> asyncio.Future[Any]:
    """Returns the result of `start`, whose callback the library runs on one of its threads."""
    loop = asyncio.get_running_loop()
    future = loop.create_future()
    start(lambda fields, error: _tell(loop, _settle, future, fields, error))
    return future


def _start(call: Callable[[], T]) -> concurrent.futures.Future[T]:
    """Runs `call` on a thread, which does not hold up the interpreter's end."""
    future: concurrent.futures.Future[T] = concurrent.futures.Future()
    future.set_running_or_notify_cancel()
    thread = threading.Thread(target=_work, args=(future, call), daemon=True, name="agmm.aio")
    try:
        thread.start()
    except RuntimeError as error:  # there are too many
        future.set_exception(error)
    return future


def _work(future: concurrent.futures.Future[T], call: Callable[[], T]) -> None:
    try:
        result = call()
    except BaseException as error:
        future.set_exception(error)
    else:
        future.set_result(result)
    finally:
        del future  # its exception refers to this frame


async def _in_turn(turns: asyncio.Semaphore, call: Callable[[], T], undo: Callable[[T], object] | None = None) -> T:
    """Waits for a turn, and then for `call`, as _on_thread does."""
    await turns.acquire()
    return await _on_thread(call, undo, turns)


async def _on_thread(call: Callable[[], T], undo: Callable[[T], object] | None = None,
                     turns: asyncio.Semaphore | None = None) -> T:
    """Awaits `call`, whose end gives a turn back. If the task is cancelled, the call goes on, and `undo` gets its result."""
    future = _start(call)
    if turns is not None:
        loop = asyncio.get_running_loop()
        future.add_done_callback(lambda _: _tell(loop, turns.release))
    try:
        return await asyncio.wrap_future(future)
    except asyncio.CancelledError:
        if undo is not None:
            future.add_done_callback(lambda ended: ended.exception() or _start(lambda: undo(ended.result())))
        raise
    finally:
        del future  # its exception refers to this frame
