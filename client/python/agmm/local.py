"""A private daemon for one block of code: notebooks, tests, a first try."""

from __future__ import annotations

import json
import os
import time
from types import TracebackType
from typing import Any

from . import errors, private_daemon
from .client import Client
from .errors import DeadlineExceeded, FailedPrecondition


class local:
    """A private daemon with CPU devices; a context manager that yields a connected agmm.Client.

        with agmm.local(devices=4) as client:
            client.put("W", array, "[K, N_x]")

    The daemon listens on a unix socket in a temporary folder that only this user can enter. It ends with the block, and
    with this process, even if the process is killed. start() and close() do the same without a block, for notebooks.
    Running a cell again starts a new daemon. The old one ends once nothing refers to this object, its client, or the
    client's tensors, jobs or mappings. To be sure, call close() before.

    devices: their number; ranks 0 to devices - 1.
    heap: memory of each device, in bytes or as text such as "256MiB", "0.5GiB" or "300MB". Tensors and workspaces live
        there.
    threads: of each device; by default the devices share the cores.
    log: a file to which the daemon appends its log.

    start() raises FileNotFoundError if there is no agmmd; agmm.InvalidArgument for bad arguments; agmm.Unavailable, with
    the daemon's reason, if it does not start, for example because the heaps do not fit in memory; agmm.DeadlineExceeded if
    it is not ready within 30 s.
    """

    def __init__(self, devices: int = 4, *, heap: str | int = "256MiB", threads: int | None = None,
                 log: str | os.PathLike | None = None) -> None:
        self._devices = private_daemon.Devices(devices, heap, threads)
        self._log = log
        self._client: Client | None = None
        self._daemon: private_daemon.Daemon | None = None
        self._closed = False

    def __repr__(self) -> str:
        state = "not running" if self._daemon is None or not self._daemon.running else self._daemon.socket
        return f"<agmm.local(devices={self._devices.count}): {state}>"

    @property
    def endpoint(self) -> str:
        """The daemon's endpoint, for agmm.connect in other processes of this user and for agmmctl --endpoint."""
        if self._daemon is None:
            raise FailedPrecondition("the daemon has not started; enter the block, or call start()")
        if self._closed:
            raise FailedPrecondition("the daemon was closed; call start(), which starts another one")
        return self._daemon.socket

    @property
    def log(self) -> str:
        """What the daemon has logged so far; after close(), all that the last one has logged."""
        return "" if self._daemon is None else self._daemon.log()

    def start(self) -> Client:
        """Starts the daemon, and returns a client with a session. Errors: see the class.

        After close(), or if the daemon has ended by itself, starts another one, without the tensors of the last.
        """
        if self._daemon is not None and not self._closed:
            if self._daemon.running:
                raise FailedPrecondition("the daemon runs already; use its client, or another agmm.local()")
            self.close()
        try:
            return self._start()
        except BaseException:  # KeyboardInterrupt, too
            self.close()
            raise

    def close(self) -> None:
        """Closes the client and ends the daemon. Tensors and jobs end with it. May be called again."""
        self._closed = True
        client, self._client = self._client, None
        try:
            if client is not None:
                client._client.advice = "its daemon has ended, too: start() of its agmm.local returns another client"
                client.close()
        finally:
            if self._daemon is not None:
                self._daemon.close()

    def __enter__(self) -> Client:
        return self.start()

    def __getattr__(self, name: str) -> Any:
        advice = ""
        if hasattr(Client, name) and not name.startswith("_"):
            advice = ", but its client has: `client = agmm.local().start()`, or `with agmm.local() as client`"
        raise AttributeError(f"agmm.local has no {name!r}{advice}")

    def __exit__(self, kind: type[BaseException] | None, value: BaseException | None,
                 traceback: TracebackType | None) -> None:
        self.close()

    def _start(self) -> Client:
        deadline = time.monotonic() + private_daemon.START_TIMEOUT
        socket = private_daemon.new_socket()
        config = (
            f'world {{ cluster: "local" node {{ name: "local" devices: {self._devices.count} }} }}\n'
            f'local {{\n  socket: {json.dumps(socket)}\n  journal: "none"\n  machines: "none"\n'
            f'{self._devices.config(daemons=1)}}}\n'
        )
        self._daemon = private_daemon.Daemon(socket, config, node="local", log=self._log)
        self._closed = False
        self._client = self._daemon.connect(deadline, session=True)
        self._client._daemon = self._daemon
        errors.advise(socket, "its tensors and jobs are gone: call start() of its agmm.local again")
        while not self._client.world().ready:
            self._daemon.check()
            if time.monotonic() > deadline:
                raise DeadlineExceeded(f"agmmd is not ready for jobs after {private_daemon.START_TIMEOUT:g} s: "
                                       f"{self._client.world().reason}; try again on a less busy host")
            time.sleep(private_daemon.POLL)
        return self._client
