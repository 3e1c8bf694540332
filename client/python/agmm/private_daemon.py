"""A daemon that belongs to this process and ends with it. agmm.local and agmm.World start such daemons."""

import atexit
import contextlib
import dataclasses
import json
import os
import re
import secrets
import shutil
import subprocess
import tempfile
import time
import weakref
from collections.abc import Sequence
from typing import IO

from . import arguments, errors, programs
from .client import Client, connect
from .errors import DeadlineExceeded, InvalidArgument, Unavailable

START_TIMEOUT = 30.0  # seconds until a daemon answers, also on a busy host
STOP_TIMEOUT = 5.0  # seconds; agmmd itself limits its stop to 2 s
POLL = 0.01  # seconds

_FILES_SUFFIX = ".files"  # of the daemon's second socket, which passes mapped memory
_USAGE_EXIT_CODE = 2
_SHOWN_LOG_LINES = 20

# Pipes to daemons. A forked child closes its copies, so that a daemon ends with the process that started it.
_pipes: "weakref.WeakSet[IO[bytes]]" = weakref.WeakSet()

# Processes of dropped Daemons, and their folders. The closed pipe ends them; they have yet to be waited for.
_dropped: "list[tuple[subprocess.Popen[bytes], str]]" = []


def _close_pipes() -> None:
    for pipe in list(_pipes):
        pipe.close()


def _forget_after_fork() -> None:
    _close_pipes()
    _dropped.clear()


os.register_at_fork(after_in_child=_forget_after_fork)


# The closed pipes would end the daemons, but later.
@atexit.register
def _end_all() -> None:
    for daemon in list(_daemons):
        daemon.close()
        daemon._log.close()
    while _dropped:
        _stop(*_dropped.pop())


def new_socket() -> str:
    """Returns a socket's path in a folder that does not exist.

    The daemon makes the folder, which only this user can enter, and removes what it made even if this process is killed.
    """
    name = os.path.join(f"agmm-{secrets.token_hex(8)}", "agmmd.sock")
    path = os.path.join(os.path.abspath(tempfile.gettempdir()), name)
    return path if len(os.fsencode(path + _FILES_SUFFIX)) <= arguments.LONGEST_SOCKET_BYTES else os.path.join("/tmp", name)


def _bytes_of(size: str | int) -> str | int:
    """Returns the bytes of a size such as "0.5GiB" or "300MB", which agmmd does not take; another one as it is."""
    given = re.fullmatch(r"\s*(\d+\.?\d*|\.\d+)\s*([kKMGT]?)(i?)B\s*", size) if isinstance(size, str) else None
    if given is None:
        return size
    return int(float(given[1]) * (1024 if given[3] else 1000) ** " kMGT".index(given[2].replace("K", "k") or " "))


@dataclasses.dataclass(frozen=True)
class Devices:
    """The CPU devices of one daemon. heap: bytes of each, or text such as "256MiB". threads: of each device."""

    count: int
    heap: str | int
    threads: int | None

    def __post_init__(self) -> None:
        arguments.whole(self.count, "devices", 16, least=1)
        if self.threads is not None:
            arguments.whole(self.threads, "threads", 16, least=1)
        if not isinstance(self.heap, (str, int)) or isinstance(self.heap, bool):
            raise InvalidArgument(f'heap is {self.heap!r}; give bytes, or text such as "256MiB"')

    def config(self, daemons: int) -> str:
        """Returns the text of the entries of `local`; `daemons` of this host share its cores."""
        heap = _bytes_of(self.heap)
        threads = self.threads or max(1, len(os.sched_getaffinity(0)) // (self.count * daemons))
        return f'  device {{ kind: "cpu" threads: {threads} heap: {json.dumps(str(heap))} }}\n' * self.count


class Daemon:
    """A process of agmmd that serves `socket`, from new_socket(), until close(), kill(), or the end of this process.

    It also ends, soon, when Python drops this object. That does not wait, because garbage collection must not.

    Only the socket's folder is on disk: the daemon reads its configuration from an unlinked file, and logs to another,
    unless `log` names a file, to which it appends.

    files: descriptors that the configuration names as /dev/fd/N.
    """

    def __init__(self, socket: str, config: str, *, node: str, files: Sequence[int] = (),
                 log: str | os.PathLike | None = None):
        self.socket = socket
        self._log = tempfile.TemporaryFile() if log is None else open(log, "a+b")
        self._log_begin = self._log.seek(0, os.SEEK_END)
        _reap()
        try:
            with unlinked(config.encode()) as config_file:
                self._process = _start(
                    [programs.find("agmmd"), "--config", f"/dev/fd/{config_file.fileno()}", "--node", node,
                     "--until-stdin-ends"],
                    [config_file.fileno(), *files],
                    self._log,
                )
        except BaseException:
            self._log.close()
            raise
        self._owner = os.getpid()
        weakref.finalize(self, _drop, self._process, self._log, socket, self._owner).atexit = False
        _daemons.add(self)

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def running(self) -> bool:
        return self._process.poll() is None

    def log(self) -> str:
        """Returns what the daemon has logged so far."""
        size = os.fstat(self._log.fileno()).st_size - self._log_begin
        return os.pread(self._log.fileno(), size, self._log_begin).decode(errors="replace")

    def connect(self, deadline: float, *, session: bool) -> Client:
        """Returns a client once the daemon answers. `deadline`: of time.monotonic(). Raises agmm.Error, with the daemon's
        reason."""
        while True:
            if os.path.exists(self.socket):
                try:
                    return connect(self.socket, session=session)
                except Unavailable:
                    pass  # it does not listen yet, or has ended
            self.check()
            if time.monotonic() > deadline:
                raise DeadlineExceeded(f"agmmd has not answered in time; its log:\n{self._tail()}")
            time.sleep(POLL)

    def check(self) -> None:
        """Raises agmm.Error, with the daemon's reason, if it has ended."""
        code = self._process.poll()
        if code is None:
            return
        if code < 0:
            raise Unavailable(f"agmmd was ended by signal {-code}; its log:\n{self._tail()}")
        lines = self.log().splitlines()
        reasons = [line for line in lines if " error " in line or line.startswith("agmmd: ")] or lines[-1:]
        reason = _without_place(reasons[-1]) if reasons else "it logged nothing"
        if code == _USAGE_EXIT_CODE:
            raise InvalidArgument(reason)
        raise Unavailable(f"agmmd has ended (exit code {code}): {reason}")

    def close(self) -> None:
        """Stops the daemon in good order. Has no effect in a forked child."""
        if os.getpid() == self._owner:
            _stop(self._process, os.path.dirname(self.socket))

    def kill(self) -> None:
        """Sends SIGKILL, and removes what the daemon leaves."""
        self._process.kill()
        self._process.wait()
        shutil.rmtree(os.path.dirname(self.socket), ignore_errors=True)

    def _tail(self) -> str:
        return "\n".join(self.log().splitlines()[-_SHOWN_LOG_LINES:])


_daemons: "weakref.WeakSet[Daemon]" = weakref.WeakSet()


def unlinked(contents: bytes) -> IO[bytes]:
    """Returns a file with `contents` that has no name."""
    file = tempfile.TemporaryFile()
    file.write(contents)
    file.flush()
    return file


def _start(command: list[str], files: list[int], log: IO[bytes]) -> "subprocess.Popen[bytes]":
    # UCX would patch the code of mmap, which takes 0.4 s, for network cards that these daemons do not use.
    environment = {"UCX_MEM_EVENTS": "n", "UCX_MEM_MMAP_HOOK_MODE": "none", **os.environ}
    # In a session of its own, it gets no SIGINT from the terminal: Ctrl-C first ends the calls in the block.
    process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=log, stderr=log, pass_fds=files, env=environment,
                               bufsize=0, start_new_session=True)
    assert process.stdin is not None
    _pipes.add(process.stdin)
    return process


def _drop(process: "subprocess.Popen[bytes]", log: IO[bytes], socket: str, owner: int) -> None:
    """Lets the process of a dropped Daemon end by itself."""
    log.close()
    errors.advise(socket, None)
    if os.getpid() != owner:
        return  # a forked child's copy of the object
    if process.stdin is not None:
        process.stdin.close()
    if process.returncode is None:
        _dropped.append((process, os.path.dirname(socket)))


def _reap() -> None:
    """Forgets the dropped processes that have ended."""
    for each in list(_dropped):
        process, folder = each
        if process.poll() is not None:
            with contextlib.suppress(ValueError):  # another thread does the same
                _dropped.remove(each)
            shutil.rmtree(folder, ignore_errors=True)  # if the daemon was killed


def _stop(process: "subprocess.Popen[bytes]", folder: str) -> None:
    try:
        if process.stdin is not None:
            process.stdin.close()
        try:
            process.wait(STOP_TIMEOUT)
        except subprocess.TimeoutExpired:
            pass
    finally:  # after a second Ctrl-C, too
        if process.poll() is None:
            process.kill()
            process.wait()
        shutil.rmtree(folder, ignore_errors=True)  # if the daemon was killed


# Removes the beginnings of lines such as "agmmd: /dev/fd/5:8:3: local.device[0].heap: ..." and
# "2026-01-01T00:00:00.000 error ...". The user has not written that configuration.
def _without_place(line: str) -> str:
    return re.sub(r"^(agmmd: |\S+ error +)(/dev/fd/\d+(:\d+)*: )?(local\.device\[\d+\]\.)?", "", line)
