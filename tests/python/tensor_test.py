"""Handles of tensors."""

import agmm
import numpy as np
import pytest

SPEC = "A[M_x, K] * B[K, N_x] -> C[M, N_x]"


def ones(rows, cols):
    return np.ones((rows, cols), np.float32)


def test_a_handle_follows_new_contents(client):
    w = client.put("W", ones(4, 6), "[K, N_x]")
    client.put("W", 2 * ones(4, 6), "[K, N_x]")
    assert (w.numpy() == 2).all()


def test_a_handle_does_not_follow_a_name(client):
    w = client.put("W", ones(4, 6), "[K, N_x]")
    other = client.put("W", ones(4, 8), "[K, N_x]")
    assert other.id != w.id
    for use in (w.numpy, w.delete, lambda: client.map(w), lambda: client.save("unused.npy", [w]),
                lambda: client.matmul(SPEC, ones(2, 4), w)):
        with pytest.raises(agmm.NotFound):
            use()
    assert client.tensor("W").shape == (4, 8)


def test_the_text_of_a_handle_works_in_other_clients(client, daemon):
    w = client.put("W", 3 * ones(4, 6), "[K, N_x]")
    with agmm.connect(daemon.endpoint) as other:
        assert (other.get(w.handle) == 3).all()


def test_a_result_can_be_rewritten_by_its_handle(client):
    y = client.matmul(SPEC, ones(2, 4), ones(4, 6))
    again = client.matmul(SPEC, 2 * ones(2, 4), ones(4, 6), out=y)
    assert (again.id, again.version) == (y.id, y.version + 1)
    assert (y.numpy() == 8).all()
