"""A daemon for the tests of the package's core."""

import os

import agmm
import pytest


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
    """A client with a session, so that each test begins without tensors."""
    with agmm.connect(daemon.endpoint, session=True) as client:
        yield client
