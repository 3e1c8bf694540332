"""Connections to a world of daemons."""

from __future__ import annotations

import gc
import itertools
import os
import threading
import time
import weakref
from collections.abc import Callable, Iterable, Mapping as MappingOf, Sequence
from types import TracebackType
from typing import TYPE_CHECKING, Any, NoReturn, TypeVar

import numpy as np

from . import _agmm, arguments, arrays, errors, program_name
from .dtypes import dtype_of, name_of, number_of
from .files import LoadedFile, Rule, loaded_file, path_of, rules_of
from .job import Job
from .job_info import JobInfo, job_info
from .mapping import Mapping, check_attached
from .product import Product
from .requests import job_request, reference_of, tensors_of
from .session_info import SessionInfo, session_info
from .tensor import Naming, Tensor
from .timeouts import to_ms
from .world_info import WorldInfo, world_info

if TYPE_CHECKING:
    from typing_extensions import Unpack

    from .requests import JobOptions

Progress = Callable[[int, int], object]
"""Called with the bytes that have moved and all bytes, about every MiB, on any thread."""

T = TypeVar("T")

_SWEEP_TIMEOUT_S = 2.0  # of each deletion
_LONGEST_END_S = 5.0  # of the sweeps at the program's end

_numbers = itertools.count(1)

_FILLINGS = ("uniform", "integers", "constant")

_open: weakref.WeakSet[Client] = weakref.WeakSet()  # without a session
_open_lock = threading.Lock()
_running = True  # until the program's end


def _forget_after_fork() -> None:
    global _open_lock
    _open_lock = threading.Lock()
    _open.clear()


os.register_at_fork(after_in_child=_forget_after_fork)


def sweep_all() -> None:
    """Deletes the results that clients without a session keep. To be called once, at the program's end, while private daemons
    run."""
    global _running
    _running = False
    end = time.monotonic() + _LONGEST_END_S
    with _open_lock:
        clients = list(_open)
    for client in clients:
        client._drop_in_use()
        client._sweep(end=end)


def connect(endpoint: str | None = None, *, session: bool = False, program: str | None = None,
            call_timeout: float = 30.0, transfer_timeout: float = 600.0) -> Client:
    """Returns a client of any daemon of a world. The daemon must answer; the world need not be complete.

    endpoint: "unix:/path", "/path" or "host:port". None: $AGMM_ENDPOINT, else the local daemon's socket.
    session: the client's tensors are deleted and its jobs cancelled when it is closed, when its process dies, and when the
        connection breaks (so calls are not repeated then).
    program: a name for the session in lists, which add the process and the host: "train.py (pid 4711 on host1)". At most 64
        bytes. None: the name of the script, or of the notebook.
    call_timeout: seconds, for short calls.
    transfer_timeout: seconds, for puts, gets, fills and mappings.
    Errors: InvalidArgument; Unavailable.
    """
    given = "" if endpoint is None else arguments.text(endpoint, "endpoint")
    name = program_name.default() if program is None else arguments.text(program, "program")
    try:
        made = _agmm.Client.connect(given, arguments.flag(session, "session"), name, to_ms(call_timeout, "call_timeout"),
                                    to_ms(transfer_timeout, "transfer_timeout"))
    except errors.Unavailable as error:
        if given:
            raise
        raise errors.Unavailable(f"{error}; agmm.local() starts a private daemon", error.reason) from None
    return Client(made, arguments.endpoint_of_any_folder(given or made.endpoint), bool(session))


class Client:
    """A connection, from agmm.connect. Thread-safe; a context manager that closes it.

    Calls take effect in the order they are admitted: a get after a submit reads that job's C. Names of tensors
    have 1 to 256 bytes of UTF-8. They contain neither "," nor control characters, do not start with "#", and neither start
    nor end with a space. Timeouts are in seconds; None stands for the client's. Once a
    process has connected, its forked children can neither use the client nor connect (FailedPrecondition): start
    processes by "spawn", or fork before the first connection.
    """

    __slots__ = ("_client", "_endpoint", "_session", "_in_use", "_dropped", "_daemon", "_number", "__weakref__")

    def __init__(self, client: _agmm.Client, endpoint: str, session: bool) -> None:
        self._client = client
        self._endpoint = endpoint
        self._session = session
        self._daemon: object = None  # a private daemon, which lives as long as its client
        self._in_use: dict[int, str] = {}  # tensors to delete later, by the identities of their Kept
        self._dropped: list[str] = []  # tensors to delete
        self._number = next(_numbers)  # of this object in the process
        if not session:
            with _open_lock:
                _open.add(self)

    def __del__(self) -> None:
        if _running and not self._session and (self._in_use or self._dropped):
            self._drop_in_use()
            self._client.close_soon(self._dropped, to_ms(_SWEEP_TIMEOUT_S))  # garbage collection must not wait for a daemon

    def __enter__(self) -> Client:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.close()

    def close(self) -> None:
        """Ends calls in progress and mappings, and waits for callbacks. Without a session, deletes the results without names
        first, unless the daemon takes more than 2 s for one. Errors: FailedPrecondition in a callback."""
        try:
            if not self._session and not _agmm.in_callback():
                self._drop_in_use()
                self._sweep()
        finally:
            self._client.close()

    @property
    def closed(self) -> bool:
        """True after close()."""
        return self._client.closed

    @property
    def endpoint(self) -> str:
        """The daemon's endpoint, for agmm.connect in other processes and for agmmctl --endpoint."""
        return self._endpoint

    def world(self, *, timeout: float | None = None) -> WorldInfo:
        """Returns the state of the world and its devices. Errors: Unavailable; DeadlineExceeded."""
        return world_info(self._client.world(to_ms(timeout)))

    def sessions(self, *, timeout: float | None = None) -> list[SessionInfo]:
        """Returns the open sessions of all clients of the world, oldest first."""
        return [session_info(fields) for fields in self._client.sessions(to_ms(timeout))]

    # ---- Tensors ----

    def put(self, name: str, array: Any, sharding: str, *, mesh: str = "", ranks: Sequence[int] = (), dtype: Any = None,
            progress: Progress | None = None, timeout: float | None = None) -> Tensor:
        """Writes a matrix to the devices, and returns its tensor.

        Rewrites the tensor called `name` if it has this shape, dtype and sharding, else makes a new one, which takes the
        name once it is complete. If a put fails, a tensor that was being rewritten has no contents.

        array: rows x cols: a NumPy array, a tensor of torch or jax in host memory, or anything numpy.asarray takes. C
            order is read in place; other layouts are gathered in blocks.
        sharding: "[M_x, K]": rows cut over mesh axis x, columns whole.
        mesh: axes over devices: "x=4", "dp=2,tp=4"; empty: one axis x over `ranks`.
        ranks: the devices of the mesh; empty: the first ones, or all if `mesh` is empty too.
        dtype: "f32", "bf16" or "f16": converts the elements, each of which is rounded once; None: the array's own, which
            must be one of these. Elements that are too large become infinite, with a RuntimeWarning, as in NumPy.
        progress: called with the moved and the total bytes; an exception ends the put.
        Errors: InvalidArgument; FailedPrecondition; ResourceExhausted; Unavailable; DeadlineExceeded. Ctrl-C ends the put.
        """
        tensor, overflow = self._put(name, array, sharding, mesh, ranks, dtype, progress, timeout, _agmm.Stop())
        if overflow:
            arguments.warn(overflow)
        return tensor

    def _put(self, name: str, array: Any, sharding: str, mesh: str, ranks: Sequence[int], dtype: Any,
             progress: Progress | None, timeout: float | None, stop: _agmm.Stop) -> tuple[Tensor, str]:
        """Returns the tensor and a warning of an overflow, if any."""
        name = arguments.name(name)
        matrix = arrays.matrix_of(array)
        chosen = arrays.dtype_for(matrix, dtype)
        spec = _spec(matrix.shape, sharding, chosen, mesh, ranks)
        rest = (arguments.callback(progress, "progress"), to_ms(timeout), stop)
        if arrays.is_plain(matrix, chosen):
            address = matrix.__array_interface__["data"][0]
            tensor = Tensor(self, self._with_room(self._client.put, name, spec, address, matrix.nbytes, *rest))
            check_attached(array)  # a mapped array whose mapping ended midway became NaN
            return tensor, ""
        overflows: list[tuple[str, int]] = []
        block = arrays.reader_of(matrix, chosen, lambda *found: overflows.append(found))
        tensor = Tensor(self, self._with_room(self._client.put_blocks, name, spec, block, *rest))
        check_attached(array)
        return tensor, f"overflow encountered in cast from {matrix.dtype} to {name_of(chosen)}" if overflows else ""

    def fill(self, name: str, shape: Sequence[int], sharding: str, *, kind: str = "uniform", seed: int = 0,
             value: float = 0.0, dtype: Any = "f32", mesh: str = "", ranks: Sequence[int] = (),
             timeout: float | None = None) -> Tensor:
        """Like put, with values generated on the devices from the seed and each element's row and column.

        kind: "uniform": in [-1, 1); "integers": from -4 to 4, so that sums of their products are exact in f32;
            "constant": `value` everywhere.
        """
        if not isinstance(kind, str) or kind not in _FILLINGS:
            raise errors.InvalidArgument(f"kind is {arguments.shown(kind)}; use one of {', '.join(_FILLINGS)}")
        spec = _spec(shape, sharding, dtype_of(dtype), mesh, ranks)
        given = (arguments.name(name), spec, _FILLINGS.index(kind), arguments.whole(seed, "seed", 64),
                 arguments.real(value, "value"), to_ms(timeout))
        return Tensor(self, self._with_room(self._client.fill, *given))

    def create(self, name: str, shape: Sequence[int], sharding: str, *, dtype: Any = "f32", mesh: str = "",
               ranks: Sequence[int] = (), timeout: float | None = None) -> Tensor:
        """Reserves space for a tensor, which has no contents until a put, a fill, a mapping or a job writes them.

        shape: (rows, columns).
        sharding, mesh, ranks: as for put.
        Errors: InvalidArgument; AlreadyExists; ResourceExhausted; Unavailable; DeadlineExceeded.
        """
        spec = _spec(shape, sharding, dtype_of(dtype), mesh, ranks)
        given = (arguments.name(name), spec, to_ms(timeout))
        return Tensor(self, self._with_room(self._client.create, *given))

    def get(self, tensor: Tensor | str, *, out: Any = None, progress: Progress | None = None,
            timeout: float | None = None) -> np.ndarray[Any, Any]:
        """Reads the contents of one version: rows x cols, of the tensor's dtype (bf16: ml_dtypes.bfloat16).

        out: an array of that shape and dtype, which takes the contents and is returned; of any layout.
        progress: called with the moved and the total bytes; an exception ends the get.
        Errors: NotFound; InvalidArgument; FailedPrecondition for a tensor without contents. After an error `out` has parts
        of the contents. Ctrl-C ends the get.
        """
        return self._get(tensor, out, progress, timeout, _agmm.Stop())

    def _get(self, tensor: Tensor | str, out: Any, progress: Progress | None, timeout: float | None,
             stop: _agmm.Stop) -> np.ndarray[Any, Any]:
        by_name = isinstance(tensor, str) and not tensor.startswith("#")
        left = _countdown(timeout)
        with Naming(tensor):
            for again in (by_name, False):
                found = self.tensor(tensor, timeout=left()) if isinstance(tensor, str) else tensor
                reference = reference_of(found)
                shape, dtype = found.shape, found.dtype
                array = np.empty(shape, dtype) if out is None else arrays.check_out(out, shape, dtype)
                rest = (arguments.callback(progress, "progress"), to_ms(left()), stop)
                try:
                    if arrays.is_plain(array, dtype):
                        self._client.get(reference, array.__array_interface__["data"][0], array.nbytes, *rest)
                    else:
                        self._client.get_blocks(reference, arrays.writer_of(array, dtype), *rest)
                    break
                except errors.NotFound:
                    if not again:  # else another tensor may have taken the name in between
                        raise
        check_attached(out)  # a mapped array whose mapping ended midway has lost what was written
        return array if out is None else out

    def map(self, tensor: Tensor | str, *, writable: bool = False, timeout: float | None = None) -> Mapping:
        """Maps the shards on the connected daemon's devices, over its unix socket, after the jobs before.

        writable: allows writes, and makes other users of the tensor wait until commit(). The arrays start with the old
            contents, if any.
        Errors: NotFound; FailedPrecondition over TCP, for shards on other nodes (any, to write; all, to read), or to read a
        tensor without contents; ResourceExhausted; DeadlineExceeded; Unavailable. Ctrl-C ends the wait, and the contents stay.
        """
        return self._map(tensor, writable, timeout, _agmm.Stop())

    def _map(self, tensor: Tensor | str, writable: bool, timeout: float | None, stop: _agmm.Stop) -> Mapping:
        writable = arguments.flag(writable, "writable")
        with Naming(tensor):
            mapped = self._client.map(reference_of(tensor), writable, to_ms(timeout), stop)
        return Mapping(self, mapped, writable, tensor._kept if isinstance(tensor, Tensor) else None)

    def load(self, path: str | os.PathLike[str], shard: MappingOf[str, Rule | str | None], *, strict: bool = False,
             progress: Progress | None = None, timeout: float | None = None) -> LoadedFile[Tensor]:
        """Puts the tensors of a .safetensors or .npy file, one after the other, in a few MiB of memory.

        The first pattern that matches a tensor's name decides how it is put; a tensor that matches none is skipped. All are
        checked before the first is put. If one fails, the error names it and those loaded before, which stay. The one of an
        .npy file is called like the file, without ".npy". A tensor of one dimension becomes a matrix of one row.

        shard: patterns ("*" matches any characters) and shardings: {"*.up_proj.weight": "[N_x, K]"}. A Rule says more
            than a sharding; None skips.
        strict: requires that a pattern matches each tensor, and each pattern a tensor.
        progress: called with the moved and the total bytes of all; an exception ends the load.
        timeout: seconds for each tensor.
        Errors: InvalidArgument, also for a file that its format does not allow; DataLoss if the file changes meanwhile;
        those of put. Ctrl-C ends the load.
        """
        return self._load(path, shard, strict, progress, timeout, _agmm.Stop())

    def _load(self, path: str | os.PathLike[str], shard: MappingOf[str, Rule | str | None], strict: bool,
              progress: Progress | None, timeout: float | None, stop: _agmm.Stop) -> LoadedFile[Tensor]:
        given = (path_of(path), rules_of(shard), arguments.flag(strict, "strict"), arguments.callback(progress, "progress"),
                 to_ms(timeout), stop)
        repeatable = os.path.isfile(path)  # unlike a pipe, which is read once
        if not repeatable:
            gc.collect()
        self._sweep(timeout=None)
        return loaded_file(self, self._with_room(self._client.load, *given, repeatable=repeatable))

    def save(self, path: str | os.PathLike[str], tensors: Sequence[Tensor | str], *,
             metadata: MappingOf[str, str] | None = None, progress: Progress | None = None,
             timeout: float | None = None) -> list[Tensor]:
        """Writes tensors to a .safetensors or .npy file, each in one version, under their names.

        The file appears when it is complete. An .npy file takes one tensor, and bf16 as f32. Returns the tensors in the
        order of the file: f32 first, then as given.

        metadata: of a .safetensors file: {"format": "pt"}.
        progress, timeout: as for load.
        Errors: InvalidArgument; ResourceExhausted for a full disk; those of get. Ctrl-C ends the save.
        """
        return self._save(path, tensors, metadata, progress, timeout, _agmm.Stop())

    def _save(self, path: str | os.PathLike[str], tensors: Sequence[Tensor | str], metadata: MappingOf[str, str] | None,
              progress: Progress | None, timeout: float | None, stop: _agmm.Stop) -> list[Tensor]:
        if isinstance(tensors, (str, bytes, Tensor, np.ndarray)) or not isinstance(tensors, Iterable):
            raise errors.InvalidArgument(f"tensors is {arguments.shown(tensors)}; give a list: [{arguments.shown(tensors)}]")
        names = [reference_of(each) for each in tensors]
        texts = {key: arguments.text(value, "a value of metadata")
                 for key, value in arguments.items({} if metadata is None else metadata, "metadata", '{"format": "pt"}')}
        with Naming(*tensors):
            saved = self._client.save(path_of(path), names, texts, arguments.callback(progress, "progress"), to_ms(timeout), stop)
        return [Tensor(self, fields) for fields in saved]

    def tensors(self, *, timeout: float | None = None) -> list[Tensor]:
        """Returns all tensors of the world."""
        return [Tensor(self, fields) for fields in self._client.tensors(to_ms(timeout))]

    def tensor(self, name: str, *, timeout: float | None = None) -> Tensor:
        """Returns the tensor called `name`. Errors: NotFound."""
        return Tensor(self, self._client.find(arguments.text(name, "name"), to_ms(timeout)))

    def delete(self, tensor: Tensor | str, *, timeout: float | None = None) -> None:
        """Frees the name at once, and the space once no job uses it. Errors: NotFound."""
        with Naming(tensor):
            self._client.delete(reference_of(tensor), to_ms(timeout))
        if isinstance(tensor, Tensor) and tensor._kept is not None:
            tensor._kept.reference = ""

    def _with_room(self, call: Callable[..., T], *given: Any, repeatable: bool = True) -> T:
        """Makes a call that may need device memory, after the dropped tensors are deleted.

        If memory is full, collects garbage, which may drop more, and makes the call once more.
        """
        self._sweep()
        try:
            return call(*given)
        except errors.ResourceExhausted:
            gc.collect()
            if not self._dropped or not repeatable:
                raise
        self._sweep()
        return call(*given)

    def _drop_in_use(self) -> None:
        """Drops all tensors that belong to handles."""
        self._dropped += filter(None, self._in_use.copy().values())
        self._in_use.clear()

    def _sweep(self, timeout: float | None = _SWEEP_TIMEOUT_S, end: float | None = None) -> None:
        """Deletes the dropped tensors, until the time `end` if it is given. Those that cannot be deleted now stay on the list."""
        taken: list[str] = []  # the one that this thread deletes
        try:
            while self._dropped:
                if end is not None and (timeout := min(_SWEEP_TIMEOUT_S, end - time.monotonic())) <= 0:
                    return
                try:
                    taken.extend(map(list.pop, (self._dropped,)))  # one call of C, which an interrupt cannot split
                except IndexError:
                    return  # another thread took the last one
                try:
                    self.delete(taken[0], timeout=timeout)
                except (errors.Unavailable, errors.DeadlineExceeded):
                    return
                except errors.Error:
                    pass  # it has been deleted
                taken.clear()
        finally:
            self._dropped += taken

    # ---- Jobs ----

    def submit(self, spec: str, a: Tensor | str | None = None, b: Tensor | str | None = None, c: Tensor | str | None = None,
               **options: Unpack[JobOptions]) -> Job:
        """Submits exactly one job, even if the connection breaks, and returns it without waiting.

        spec: "A[M_x, K] * B[K, N_x] -> C[M, N_x]"; the tensors' shardings must match it. C has the dtype of A, or
            another one that the spec gives it: "C[M, N_x]:f32".
        a, b, c: tensors; a new name for C makes a new tensor.
        options: see agmm.JobOptions.
        Errors: InvalidArgument; FailedPrecondition if the tensors do not fit the spec; Unimplemented; Unavailable. Ctrl-C
        ends the call, and cancels the job if it was submitted. If the daemon does not answer, it is cancelled once the
        daemon does, while this client is open; close() waits 5 s for that.
        """
        return self._submit(spec, a, b, c, options, _agmm.Stop())

    def _submit(self, spec: str, a: Tensor | str | None, b: Tensor | str | None, c: Tensor | str | None, options: JobOptions,
                stop: _agmm.Stop) -> Job:
        request = job_request(spec, a, b, c, options)
        with Naming(*tensors_of(a, b, c, options)):
            return Job(self, self._with_room(self._client.submit, request, 0, stop))

    def run(self, spec: str, a: Tensor | str | None = None, b: Tensor | str | None = None, c: Tensor | str | None = None,
            **options: Unpack[JobOptions]) -> JobInfo:
        """Submits a job and waits for it in one call: made for many small jobs. See submit and Job.wait."""
        request = job_request(spec, a, b, c, options)
        with Naming(*tensors_of(a, b, c, options)):
            return job_info(self._with_room(self._client.run, request, 0))

    def matmul(self, spec: str, a: Any, b: Any, *, out: Tensor | str | None = None, dtype: Any = None,
               **options: Unpack[JobOptions]) -> Tensor:
        """Computes a product, and returns its tensor, which stays on the devices; its `job` explains the run.

        a, b: tensors, names, or arrays, which are put under names of this call's own and deleted after it.
        out: a tensor or a name for the result. None: the result belongs to the Tensor that is returned (and to others of
            the same result, and its mappings): when Python has dropped them, the client's next call that may need room
            deletes it. So does close(), or the normal end of the program, if the daemon answers.
        dtype: of the tensors made from arrays, of which there must be one; see put.
        options: see agmm.JobOptions.
        """
        self._sweep(timeout=None)
        try:
            with Product(self, spec, a, b, out, dtype, dict(options)) as product:
                for put in product.puts:
                    self.put(*put, **product.places)
                return product.result(self.run(spec, **product.options), self.tensor(product.out))
        finally:
            self._sweep()

    def job(self, id: int, *, timeout: float | None = None) -> Job:
        """Returns a job of any client. Errors: NotFound."""
        return Job(self, self._client.find_job(arguments.whole(id, "id", 64), to_ms(timeout)))

    def jobs(self, limit: int = 100, *, timeout: float | None = None) -> list[JobInfo]:
        """Returns at most `limit` jobs, newest first."""
        return [job_info(fields) for fields in self._client.jobs(arguments.whole(limit, "limit", 31), to_ms(timeout))]

    def __reduce__(self) -> NoReturn:
        raise TypeError("a Client cannot be copied or pickled; send its endpoint, and connect there with agmm.connect(endpoint)")

    def __repr__(self) -> str:
        return f"<agmm.Client of {self._endpoint}{', closed' if self.closed else ''}>"


def _countdown(timeout: float | None) -> Callable[[], float | None]:
    """Returns a function that tells how much of the timeout is left: at least a millisecond; None of None."""
    to_ms(timeout)  # refuses other values
    if timeout is None:
        return lambda: None
    end = time.monotonic() + timeout
    return lambda: max(end - time.monotonic(), 0.001)


def _spec(shape: Any, sharding: str, dtype: np.dtype[Any], mesh: str, ranks: Sequence[int]) -> _agmm.TensorSpec:
    rows, cols = arguments.shape(shape)
    return _agmm.TensorSpec(rows, cols, number_of(dtype), arguments.text(sharding, "sharding"), arguments.text(mesh, "mesh"),
                            arguments.ranks(ranks))
