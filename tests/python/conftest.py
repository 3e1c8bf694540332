"""Real daemons for the tests."""

import contextlib
import os
import pathlib
import socket
import subprocess
import tempfile
import time

import agmm
import pytest
from agmm import programs

PATIENCE_S = 60


@contextlib.contextmanager
def local(devices=2, heap="64MiB", failpoints=""):
    with tempfile.TemporaryDirectory(prefix="agmm-") as folder:
        path = pathlib.Path(folder)
        with socket.socket() as held:
            held.bind(("127.0.0.1", 0))
            port = held.getsockname()[1]
        device = f'device {{ kind: "cpu" threads: 1 heap: "{heap}" }}\n'
        (path / "config").write_text(
            f'world {{ cluster: "test" node {{ name: "n" address: "127.0.0.1:{port}" devices: {devices} }} }}\n'
            f'local {{ node: "n" socket: "{path}/socket" machines: "none"\n{device * devices}}}\n')
        environment = dict(os.environ)
        if failpoints:
            environment["AGMM_FAILPOINTS"] = failpoints
        with open(path / "log", "w") as log:
            daemon = subprocess.Popen([programs.find("agmmd"), "--config", str(path / "config")], env=environment,
                                      stdout=log, stderr=log)
        try:
            end = time.monotonic() + PATIENCE_S
            while True:
                try:
                    client = agmm.connect(str(path / "socket"), session=True)
                    if client.world().ready:
                        break
                    client.close()
                except agmm.Unavailable:
                    if daemon.poll() is not None or time.monotonic() > end:
                        raise AssertionError((path / "log").read_text()) from None
                time.sleep(0.02)
            client_daemon = daemon
            with client:
                yield client, str(path / "socket"), client_daemon
        finally:
            daemon.kill()
            daemon.wait()


@pytest.fixture(scope="session")
def daemon():
    with local() as (client, endpoint, process):
        yield client, endpoint, process


@pytest.fixture
def client(daemon):
    with agmm.connect(daemon[1], session=True) as client:
        yield client
