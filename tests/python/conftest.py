"""A daemon for the tests of the package's core."""

import os
import signal

import agmm
import pytest
from support import A, B, wait_until

# A script that runs the tests in the background may ignore it, and so would the programs that they start.
signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.fixture(scope="session")
def daemon():
    """A world of two devices, as agmm.local. Delays at each step make a job of many epochs long."""
    os.environ["AGMM_FAILPOINTS"] = "executor.delay=*"
    local = agmm.local(devices=2, heap="64MiB", threads=1)
    try:
        local.start()
    finally:
        del os.environ["AGMM_FAILPOINTS"]
    yield local
    local.close()


@pytest.fixture
def client(daemon):
    """A client with a session of its own. Its tensors end before the next test begins."""
    with agmm.connect(daemon.endpoint, session=True) as client:
        yield client
    with agmm.connect(daemon.endpoint) as observer:
        for tensor in observer.tensors():
            if not tensor.of_session:
                tensor.delete()
        wait_until(lambda: not observer.tensors())


@pytest.fixture
def operands(client):
    """Puts the operands of SPEC, under the names A and B."""
    client.put("A", A, "[M_x, K]")
    client.put("B", B, "[K, N_x]")
