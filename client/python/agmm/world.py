"""Several daemons on this host, which form one world: for tests of programs against worlds, and of lost daemons."""

import json
import secrets
import socket
import time
from collections.abc import Iterable, Sequence
from types import TracebackType

from . import private_daemon
from .client import Client
from .errors import DeadlineExceeded, FailedPrecondition, InvalidArgument, Unavailable


class World:
    """Private daemons over loopback, as several hosts would run them; a context manager.

        with agmm.world([2, 2]) as world:
            world.clients[0].put("W", array, "[K, N_x]")   # over 4 ranks
            world.kill(1)

    agmm.world(...) starts them and waits until jobs can run. They end with close(), with the block, and with this
    process, even if it is killed.

    Other users of this host must be trusted: the daemons also serve clients on ports of 127.0.0.1, which any user can reach,
    to read, replace and delete the tensors. agmm.local has no port.

    devices: the number of CPU devices of each daemon; ranks are numbered over all daemons. Daemon 0 orders the jobs.
    heap, threads: of each device, as for agmm.local. By default all devices share the cores.
    timeout: seconds until jobs can run.
    """

    def __init__(self, devices: Sequence[int], *, heap: str | int = "256MiB", threads: int | None = None,
                 timeout: float = private_daemon.START_TIMEOUT) -> None:
        if isinstance(devices, (str, bytes)) or not isinstance(devices, Iterable):
            raise InvalidArgument(f"devices is {devices!r}; give the devices of each daemon, such as [2, 2]")
        self._devices = [private_daemon.Devices(count, heap, threads) for count in devices]
        if not self._devices:
            raise InvalidArgument("a world has at least one daemon; give the devices of each, such as [2, 2]")
        self.clients: list[Client] = []
        """A client of each daemon, without a session. It reconnects to a daemon that was killed and started again."""
        self._daemons: list[private_daemon.Daemon | None] = [None] * len(self._devices)
        self._sockets = [private_daemon.new_socket() for _ in self._devices]
        self._secret = private_daemon.unlinked(secrets.token_bytes(32))
        self._ports = [_hold_port() for _ in range(len(self._devices) + 1)]
        try:
            self._start_all(timeout)
        except BaseException:  # KeyboardInterrupt, too
            self.close()
            raise

    def start(self, index: int) -> None:
        """Starts a daemon again after kill(), and returns when it answers. wait_ready() waits for the world.

        Raises agmm.FailedPrecondition if it runs, agmm.Unavailable with its reason if it does not start.
        """
        self._daemon(index)  # the world is open
        if self.running(index):
            raise FailedPrecondition(f"daemon {index} runs already; call kill({index}) first")
        self._spawn(index)
        self._daemon(index).connect(time.monotonic() + private_daemon.START_TIMEOUT, session=False).close()

    def kill(self, index: int) -> None:
        """Kills a daemon (SIGKILL), and returns when it has ended; no effect if it has ended already."""
        daemon = self._at(index)
        if daemon is not None:
            daemon.kill()

    def running(self, index: int) -> bool:
        """Returns true if the daemon's process runs."""
        daemon = self._at(index)
        return daemon is not None and daemon.running

    def pid(self, index: int) -> int:
        """The process of a daemon, for signals such as SIGSTOP."""
        return self._daemon(index).pid

    def log(self, index: int) -> str:
        """What the daemon has logged since its last start; also after kill()."""
        return self._daemon(index).log()

    def endpoint(self, index: int) -> str:
        """The daemon's unix socket, for agmm.connect and for agmmctl --endpoint."""
        self._at(index)
        return self._sockets[index]

    def wait_ready(self, timeout: float = private_daemon.START_TIMEOUT) -> None:
        """Waits until every daemon says that jobs can run. Raises agmm.DeadlineExceeded, with the world's reason, after
        `timeout` seconds; agmm.Unavailable if a daemon has ended."""
        self._wait_ready(time.monotonic() + timeout, timeout)

    def close(self) -> None:
        """Closes the clients and ends all daemons. May be called again."""
        clients, self.clients = self.clients, []
        daemons, self._daemons = self._daemons, [None] * len(self._daemons)
        ports, self._ports = self._ports, []
        try:
            for client in clients:
                client.close()
        finally:
            for daemon in daemons:
                if daemon is not None:
                    daemon.close()
            for port in ports:
                port.close()
            self._secret.close()

    def __repr__(self) -> str:
        states = ("closed" if daemon is None else self.endpoint(i) if daemon.running else "ended"
                  for i, daemon in enumerate(self._daemons))
        return f"<agmm.World({[each.count for each in self._devices]}): {', '.join(states)}>"

    def __enter__(self) -> "World":
        return self

    def __exit__(self, kind: type[BaseException] | None, value: BaseException | None,
                 traceback: TracebackType | None) -> None:
        self.close()

    def _start_all(self, timeout: float) -> None:
        deadline = time.monotonic() + timeout
        for index in range(len(self._devices)):
            self._spawn(index)
        for index in range(len(self._devices)):
            self.clients.append(self._daemon(index).connect(deadline, session=False))
        self._wait_ready(deadline, timeout)

    def _wait_ready(self, deadline: float, timeout: float) -> None:
        for index, client in enumerate(self.clients):
            while (reason := self._reason_not_ready(index, client, deadline)) is not None:
                if time.monotonic() > deadline:
                    raise DeadlineExceeded(f"daemon {index} is not ready after {timeout:g} s: {reason}; give a longer timeout")
                time.sleep(private_daemon.POLL)

    def _spawn(self, index: int) -> None:
        killed = self._daemons[index]
        if killed is not None:
            killed.close()
        self._daemons[index] = private_daemon.Daemon(
            self.endpoint(index), self._config(index), node=f"n{index}", files=[self._secret.fileno()])

    def _daemon(self, index: int) -> private_daemon.Daemon:
        daemon = self._at(index)
        if daemon is None:
            raise FailedPrecondition("the world is closed; make another one")
        return daemon

    def _at(self, index: int) -> private_daemon.Daemon | None:
        if not isinstance(index, int) or not 0 <= index < len(self._daemons):
            raise IndexError(f"there is no daemon {index!r} in this world; its daemons are 0 to {len(self._daemons) - 1}")
        return self._daemons[index]

    def _reason_not_ready(self, index: int, client: Client, deadline: float) -> str | None:
        for i in range(len(self._daemons)):
            try:
                self._daemon(i).check()
            except Unavailable as error:
                raise Unavailable(f"daemon {i} has ended, start({i}) starts it again: {error}", error.reason) from None
        try:
            info = client.world(timeout=max(private_daemon.POLL, deadline - time.monotonic()))
        except (Unavailable, DeadlineExceeded) as error:
            return str(error)
        return None if info.ready else info.reason

    def _config(self, index: int) -> str:
        ports = [port.getsockname()[1] for port in self._ports]
        nodes = "".join(f'  node {{ name: "n{i}" address: "127.0.0.1:{ports[i]}" devices: {one.count} }}\n'
                        for i, one in enumerate(self._devices))
        return (
            f'world {{\n  cluster: "world"\n{nodes}  peer_port: {ports[-1]}\n}}\n'
            f'local {{\n  socket: {json.dumps(self.endpoint(index))}\n  secret: "/dev/fd/{self._secret.fileno()}"\n'
            f'  journal: "none"\n  machines: "none"\n{self._devices[index].config(len(self._devices))}}}\n'
        )


def world(devices: Sequence[int], *, heap: str | int = "256MiB", threads: int | None = None,
          timeout: float = private_daemon.START_TIMEOUT) -> World:
    """Starts daemons on this host, one for each entry of `devices`, and returns them once jobs can run. See World."""
    return World(devices, heap=heap, threads=threads, timeout=timeout)


# A port that no other program gets while the socket is open, even while a daemon restarts: the socket is bound and does
# not listen, and SO_REUSEADDR lets the daemon listen at it.
def _hold_port() -> socket.socket:
    held = socket.socket()
    held.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    held.bind(("127.0.0.1", 0))
    return held
