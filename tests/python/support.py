"""Helpers of the tests."""

import time

import numpy as np

PATIENCE_S = 60
SPEC = "A[M_x, K] * B[K, N_x] -> C[M, N_x]"
LONG = {"repeat": 1_000_000, "timeout": 600}  # of a job that runs until it is cancelled


def wait_until(holds):
    """Waits until `holds()` is true."""
    deadline = time.monotonic() + PATIENCE_S
    while not holds():
        assert time.monotonic() < deadline
        time.sleep(0.01)


def integers(rows, cols, seed, dtype=np.float32):
    """Returns a matrix whose products are exact."""
    return np.random.default_rng(seed).integers(-4, 5, (rows, cols)).astype(dtype)


A, B = integers(50, 30, 1), integers(30, 40, 2)  # the operands of SPEC in most tests
