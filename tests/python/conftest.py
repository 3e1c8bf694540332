"""A daemon for the tests of the package's core."""

import asyncio
import contextlib
import gc
import os
import signal

import agmm
import agmm.aio
import pytest
from support import A, B, PATIENCE_S, wait_until

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

        def is_empty():
            tensors = observer.tensors()
            for tensor in tensors:
                if not tensor.of_session:
                    with contextlib.suppress(agmm.NotFound):
                        tensor.delete()
            return not tensors

        wait_until(is_empty)


@pytest.fixture
def run(daemon):
    """Runs a coroutine function with a client of its own. Its tensors end before the next one begins."""

    def run_with(function):
        async def main():
            async with agmm.aio.connect(daemon.endpoint, session=True) as client:
                return await asyncio.wait_for(function(client), PATIENCE_S)

        result = asyncio.run(main())
        with agmm.connect(daemon.endpoint) as observer:
            wait_until(lambda: not observer.tensors())
        return result

    return run_with


@pytest.fixture
def no_collector():
    """Nothing collects cycles meanwhile."""
    gc.disable()
    yield
    gc.enable()


@pytest.fixture
def operands(client):
    """Puts the operands of SPEC, under the names A and B."""
    client.put("A", A, "[M_x, K]")
    client.put("B", B, "[K, N_x]")
