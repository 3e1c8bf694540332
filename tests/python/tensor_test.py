"""Handles of tensors."""

import agmm
import numpy as np
import pytest
from support import SPEC


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


def replaced_after_a_lookup(client, monkeypatch, count):
    """Has another put take the name W after each of the first `count` lookups. Returns the timeouts of all lookups."""
    find = agmm.Client.tensor
    timeouts = []

    def find_first(self, name, *, timeout=None):
        found = find(self, name, timeout=timeout)
        timeouts.append(timeout)
        if len(timeouts) <= count:
            client.put("W", np.full((4, 6 + len(timeouts)), len(timeouts), np.float32), "[K, N]")
        return found

    monkeypatch.setattr(agmm.Client, "tensor", find_first)
    return timeouts


@pytest.mark.parametrize("out", [None, 0 * ones(4, 7), 0 * ones(7, 4).T], ids=["new", "plain", "transposed"])
def test_a_get_by_name_finds_the_tensor_that_takes_the_name_meanwhile(client, monkeypatch, out):
    client.put("W", 5 * ones(4, 6 if out is None else 7), "[K, N_x]")
    timeouts = replaced_after_a_lookup(client, monkeypatch, 1)
    got = client.get("W", out=out, timeout=60)
    assert got.shape == (4, 7) and (got == 1).all()
    assert len(timeouts) == 2 and 0 < timeouts[1] < timeouts[0] <= 60


def test_a_get_by_name_checks_out_against_the_tensor_that_takes_the_name(client, monkeypatch):
    client.put("W", ones(4, 6), "[K, N_x]")
    replaced_after_a_lookup(client, monkeypatch, 1)
    with pytest.raises(agmm.InvalidArgument, match=r"out has shape \(4, 6\)"):
        client.get("W", out=ones(4, 6))


@pytest.mark.parametrize("by_name, lookups", [(True, 2), (False, 1)])
def test_a_get_by_name_looks_it_up_twice_and_one_by_handle_once(client, monkeypatch, by_name, lookups):
    w = client.put("W", ones(4, 6), "[K, N_x]")
    timeouts = replaced_after_a_lookup(client, monkeypatch, 3)
    with pytest.raises(agmm.NotFound):
        client.get("W" if by_name else w.handle)
    assert len(timeouts) == lookups


def test_a_get_by_a_name_that_is_gone_says_so(client, monkeypatch):
    client.put("W", ones(4, 6), "[K, N_x]")
    find = agmm.Client.tensor

    def find_and_delete(self, name, *, timeout=None):
        found = find(self, name, timeout=timeout)
        client.delete("W")
        return found

    monkeypatch.setattr(agmm.Client, "tensor", find_and_delete)
    with pytest.raises(agmm.NotFound, match='"W"'):
        client.get("W")
