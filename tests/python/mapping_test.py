"""Mappings: arrays over a tensor's own memory, and their end."""

import collections
import copy
import gc
import pickle
import tracemalloc
import warnings

import agmm
import ml_dtypes
import numpy as np
import pytest
from support import PATIENCE_S, SPEC, wait_until

pytestmark = pytest.mark.filterwarnings("ignore:the mapping of tensor 'A' ends without commit:RuntimeWarning")


def put(client, name="A", dtype="f32", sharding="[M_x, K]"):
    array = np.arange(24, dtype=np.float32).reshape(4, 6)
    client.put(name, array, sharding, dtype=dtype)
    return array.astype({"f32": np.float32, "f16": np.float16, "bf16": ml_dtypes.bfloat16}[dtype])


@pytest.mark.parametrize("dtype", ["f32", "f16", "bf16"])
def test_shards_show_the_parts_of_the_tensor(client, dtype):
    array = put(client, dtype=dtype)
    with client.map("A") as mapping:
        assert [(shard.rank, shard.rows, shard.cols) for shard in mapping.shards] == [
            (0, slice(0, 2), slice(0, 6)), (1, slice(2, 4), slice(0, 6))]
        for shard in mapping.shards:
            assert shard.array.dtype == array.dtype and not shard.array.flags.writeable
            np.testing.assert_array_equal(shard.array, array[shard.rows, shard.cols])
        with pytest.raises(agmm.FailedPrecondition, match=r"cut into shards \(\[M_x, K\]\); use `shards`"):
            mapping.array
    assert mapping.detached


def test_a_shard_that_is_the_whole_tensor_is_the_array(client):
    array = put(client, sharding="[M, K]")
    with client.map("A") as mapping:
        np.testing.assert_array_equal(mapping.array, array)


def test_writes_become_the_contents_by_a_commit(client):
    array = put(client)
    with client.map("A", writable=True) as mapping:
        for shard in mapping.shards:
            mapped = shard.array
            mapped[:] = array[shard.rows, shard.cols] * 2
            mapped += 1
        version = mapping.tensor.version
        assert mapping.commit().version > version
        assert mapping.detached
    np.testing.assert_array_equal(client.get("A"), array * 2 + 1)


def test_a_writable_mapping_without_a_commit_leaves_no_contents(client):
    put(client)
    with client.map("A", writable=True):
        pass
    assert not client.tensor("A").has_contents
    with pytest.raises(agmm.FailedPrecondition):
        client.get("A")


def test_a_read_only_array_cannot_be_written(client):
    put(client)
    with client.map("A") as mapping:
        with pytest.raises(ValueError, match="read-only"):
            mapping.shards[0].array[0, 0] = 1
        with pytest.raises(ValueError, match="WRITEABLE"):
            mapping.shards[0].array.flags.writeable = True
        with pytest.raises(agmm.FailedPrecondition):
            mapping.commit()


USES = {
    "an element": lambda array: array[0, 0],
    "a write": lambda array: array.__setitem__((0, 0), 1),
    "a row": lambda array: array[0],
    "a sum": lambda array: array.sum(),
    "an attribute": lambda array: array.shape,
    "arithmetic": lambda array: array + 1,
    "arithmetic on the right": lambda array: np.ones((2, 6), np.float32) + array,
    "arithmetic in place": lambda array: array.__iadd__(1),
    "a product": lambda array: array @ np.ones((6, 1), np.float32),
    "out=": lambda array: np.add(1, 1, out=array),
    "a function of NumPy": lambda array: np.concatenate([array, array]),
    "np.sum": np.sum,
    "a copy": lambda array: array.copy(),
    "copy.copy": copy.copy,
    "copy.deepcopy": copy.deepcopy,
    "pickle": pickle.dumps,
    "str": str,
    "repr": repr,
    "list": list,
    "len": len,
    "in": lambda array: 1 in array,
    "bool": lambda array: bool(array[:1, :1]),
    "tolist": lambda array: array.tolist(),
    "tobytes": lambda array: array.tobytes(),
    "a transposition": lambda array: array.T,
    "DLPack": np.from_dlpack,
}


@pytest.mark.parametrize("use", USES)
@pytest.mark.parametrize("end", ["close", "commit", "client"])
def test_a_use_after_the_end_is_an_error(client, use, end):
    put(client)
    mapping = client.map("A", writable=True)
    array = mapping.shards[0].array
    view = array[:, :]
    assert type(view) is type(array)
    USES[use](array)
    {"close": mapping.close, "commit": mapping.commit, "client": client.close}[end]()
    for used in (array, view):
        with pytest.raises(agmm.FailedPrecondition, match="tensor 'A' is detached from its mapping"):
            USES[use](used)


EXPORTS = {
    "DLPack": np.from_dlpack,
    "a copy by DLPack": lambda array: np.from_dlpack(array, copy=True),
    "DLPack of JAX": lambda array: np.from_dlpack(Streamed(array)),
    "__array__": lambda array: array.__array__(dtype=np.dtype(np.float32), copy=True),
    "np.array": lambda array: np.array(array, copy=True),
}


class Streamed:
    """Is exported as jax.dlpack exports it."""

    def __init__(self, array):
        self.array = array
        self.__dlpack_device__ = array.__dlpack_device__

    def __dlpack__(self, **options):
        return self.array.__dlpack__(stream=None, **options)


@pytest.mark.parametrize("case", EXPORTS)
@pytest.mark.parametrize("writable", [False, True])
def test_other_libraries_take_an_array_as_one_of_numpy(client, case, writable):
    array = put(client, sharding="[M, K]")
    with client.map("A", writable=writable) as mapping:
        taken = EXPORTS[case](mapping.shards[0].array)
        assert np.array_equal(taken, array) and type(taken) is np.ndarray
        shares = case.startswith("DLPack")
        assert np.shares_memory(taken, np.asarray(mapping.shards[0].array)) == shares
        assert taken.flags.writeable or shares and not writable
        mapping.commit() if writable else mapping.release()


VIEWS = {
    "transpose": np.transpose,
    "reshape": lambda array: np.reshape(array[:1], (3, 2)),
    "squeeze": np.squeeze,
    "split": lambda array: np.split(array, 2)[1],
    "ravel": lambda array: np.ravel(array[:1]),
    "broadcast_to": lambda array: np.broadcast_to(array, (2, 2, 6)),
    "atleast_3d": np.atleast_3d,
    "broadcast_arrays": lambda array: np.broadcast_arrays(np.ones((2, 6)), array)[1],
}


@pytest.mark.parametrize("name", VIEWS)
def test_views_that_functions_return_end_with_the_mapping(client, name):
    put(client)
    with client.map("A") as mapping:
        view = VIEWS[name](mapping.shards[0].array)
        assert view.sum() > 0
    with pytest.raises(agmm.FailedPrecondition, match="tensor 'A' is detached from its mapping"):
        view.sum()


def test_functions_take_named_tuples(client):
    array = put(client)
    pair = collections.namedtuple("Pair", "a b")
    with client.map("A") as mapping:
        mapped = mapping.shards[0].array
        np.testing.assert_array_equal(np.concatenate(pair(mapped, mapped)), np.concatenate([array[:2], array[:2]]))


def test_the_last_reference_ends_a_mapping(client):
    put(client)
    gc.disable()
    try:
        client.map("A", writable=True)
        client.put("A", np.ones((4, 6), np.float32), "[M_x, K]", timeout=PATIENCE_S)
    finally:
        gc.enable()


def test_copies_and_results_outlive_the_mapping(client):
    array = put(client)
    with client.map("A") as mapping:
        mapped = mapping.shards[0].array
        kept = [mapped.copy(), mapped + 0, mapped.astype(np.float64), np.concatenate([mapped]), copy.deepcopy(mapped)]
    for each in kept:
        np.testing.assert_array_equal(each, array[:2])


@pytest.mark.parametrize("dtype", ["f32", "f16", "bf16"])
def test_memory_that_escaped_reads_as_nan_after_the_end(client, dtype):
    put(client, dtype=dtype)
    with client.map("A") as mapping:
        array = mapping.shards[1].array
        escaped = np.asarray(array)
        assert not np.isnan(escaped).any() and type(escaped) is np.ndarray
    del mapping
    gc.collect()
    assert np.isnan(escaped.astype(np.float32)).all()
    # NumPy copies these without asking the class.
    assert np.isnan(np.array(array).astype(np.float32)).all()


def test_the_memory_goes_with_the_last_array(client):
    def are_mapped():
        """Tells of each address if the memory of a mapping that has ended is there."""
        with open("/proc/self/maps") as maps:
            lines = [line for line in maps if "/memfd:agmm-detached" in line]
        ranges = [[int(end, 16) for end in line.split()[0].split("-")] for line in lines]
        return [any(begin <= address < end for begin, end in ranges) for address in addresses]

    put(client)
    with client.map("A") as mapping:
        addresses = [shard.array.ctypes.data for shard in mapping.shards]
        array = mapping.shards[0].array[0]
    assert are_mapped() == [True, True]
    del mapping
    gc.collect()
    assert are_mapped() == [True, True]
    del array
    gc.collect()
    wait_until(lambda: are_mapped() == [False, False])  # the thread that detached it may hold it a little longer


def test_a_mapping_is_read_without_a_copy(client):
    client.fill("A", (2048, 1024), "[M, K]")
    with client.map("A") as mapping:
        tracemalloc.start()
        try:
            mapping.array.sum()
            mapping.array[::2].T.max()
            client.put("B", mapping.array, "[M, K]")
            peak_bytes = tracemalloc.get_traced_memory()[1]
        finally:
            tracemalloc.stop()
    assert peak_bytes < 2048 * 1024 * 4 / 8
    np.testing.assert_array_equal(client.get("B"), client.get("A"))


def test_errors_of_a_mapping(client):
    with pytest.raises(agmm.NotFound):
        client.map("absent")
    tensor = client.create("A", (4, 6), "[M_x, K]")
    with pytest.raises(agmm.FailedPrecondition):
        tensor.map()
    with tensor.map(writable=True) as mapping:
        assert repr(mapping).startswith("Mapping(Tensor('A'")


def test_one_pair_of_mappings_serves_a_loop_of_jobs(client):
    b = np.arange(24, dtype=np.float32).reshape(6, 4)
    client.put("B", b, "[K, N_x]")
    put(client)
    client.run(SPEC, "A", "B", "C")
    with client.map("A", writable=True) as x, client.map("C") as y:
        arrays = [shard.array for shard in x.shards + y.shards]
        addresses = [array.ctypes.data for array in arrays]
        version = x.tensor.version
        for round in range(20):
            batch = np.full((4, 6), round, np.float32)
            x.renew()
            x.write(batch)
            committed = x.commit()
            assert committed.version > version and x.detached
            version = committed.version
            y.release()
            client.run(SPEC, "A", "B", "C")
            assert y.renew().version == y.tensor.version
            np.testing.assert_array_equal(y.read(), batch @ b)
            np.testing.assert_array_equal(arrays[-1], (batch @ b)[y.shards[-1].rows, y.shards[-1].cols])
        x.renew()
        assert [array.ctypes.data for array in arrays] == addresses
        np.testing.assert_array_equal(x.shards[0].array, batch[:2])
        x.commit()
    np.testing.assert_array_equal(client.get("A"), batch)


def test_a_detached_array_cannot_be_used_until_the_renewal(client):
    array = put(client)
    with client.map("A", writable=True) as mapping:
        mapped, view = mapping.shards[0].array, mapping.shards[0].array[1:]
        mapping.commit()
        for use in (lambda: mapped[0, 0], lambda: view.sum(), mapping.read, lambda: mapping.write(array)):
            with pytest.raises(agmm.FailedPrecondition, match="renew"):
                use()
        mapping.renew()
        np.testing.assert_array_equal(view, array[1:2])
        mapping.commit()


def test_each_kind_of_mapping_returns_its_lease_in_its_own_way(client):
    put(client)
    with client.map("A") as mapping:
        with pytest.raises(agmm.FailedPrecondition, match="release it"):
            mapping.commit()
        mapping.release()
        with pytest.raises(agmm.FailedPrecondition, match="renew it first"):
            mapping.release()
    with client.map("A", writable=True) as mapping:
        with pytest.raises(agmm.FailedPrecondition, match="commit it"):
            mapping.release()
        mapping.commit()
        with pytest.raises(agmm.FailedPrecondition, match="renew it first"):
            mapping.commit()
    assert client.tensor("A").has_contents


def test_a_block_that_forgets_its_commit_gives_a_warning(client):
    put(client)
    with pytest.warns(RuntimeWarning, match="of tensor 'A' ends without commit") as warned:
        with client.map("A", writable=True) as mapping:
            mapping.shards[0].array[:] = 7
    assert [each.filename for each in warned] == [__file__]
    put(client)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with client.map("A", writable=True) as mapping:
            mapping.commit()
        with pytest.raises(LookupError), client.map("A", writable=True):
            raise LookupError("the caller's own")


def test_a_mapping_that_nobody_received_leaves_the_contents(client):
    array = put(client)
    mapping = client.map("A", writable=True)
    mapping._mapping.give_back()
    assert mapping.detached
    np.testing.assert_array_equal(client.get("A"), array)


def test_the_deletion_of_a_tensor_ends_its_mapping(client):
    put(client)
    with client.map("A") as mapping:
        mapping.release()
        client.delete("A")
        with pytest.raises(agmm.NotFound):
            mapping.renew()
        with pytest.raises(agmm.NotFound):
            mapping.renew()


def test_a_renewal_ends_at_its_timeout(client):
    put(client)
    with client.map("A", writable=True) as mapping:
        mapping.commit()
        with client.map("A", writable=True):
            with pytest.raises(agmm.DeadlineExceeded, match="'?A'?.* was in use"):
                mapping.renew(timeout=0.5)


def test_an_array_is_written_to_each_copy(client):
    array = put(client, sharding="[M, K]")
    with client.map("A", writable=True) as mapping:
        with pytest.raises(agmm.FailedPrecondition, match=r"2 copies, and each has to be written; use write\(\)"):
            mapping.array
        mapping.write(array * 2)
        assert len(mapping.shards) == 2
        np.testing.assert_array_equal(mapping.read(), array * 2)
        mapping.commit()
    # Each device computes its rows from its own copy.
    client.put("B", np.eye(6, dtype=np.float32), "[K, N]")
    client.run("A[M, K] * B[K, N] -> C[M_x, N]", "A", "B", "C")
    np.testing.assert_array_equal(client.get("C"), array * 2)


def test_copies_that_differ_are_not_committed(client):
    array = put(client, sharding="[M, K]")
    with client.map("A", writable=True) as mapping:
        mapping.shards[1].array[3, 5] = np.nan
        with pytest.raises(agmm.FailedPrecondition, match=r"rows 0:4, columns 0:6 of 'A' on ranks 0 and 1 differ; write all"):
            mapping.commit()
        assert not mapping.detached
        mapping.shards[0].array[3, 5] = np.nan
        mapping.commit()
    array[3, 5] = np.nan
    np.testing.assert_array_equal(client.get("A"), array)


def test_read_and_write_check_their_arrays(client):
    array = put(client, dtype="bf16")
    with client.map("A") as mapping:
        np.testing.assert_array_equal(mapping.read(), array)
        out = np.zeros((6, 4), array.dtype).T
        assert mapping.read(out) is out
        np.testing.assert_array_equal(out, array)
        for wrong in (np.zeros((4, 5), array.dtype), np.zeros((4, 6))):
            with pytest.raises(agmm.InvalidArgument, match="out has shape"):
                mapping.read(wrong)
        with pytest.raises(agmm.FailedPrecondition, match="writable=True"):
            mapping.write(array)
    with client.map("A", writable=True) as mapping:
        with pytest.raises(agmm.InvalidArgument, match=r"shape \(6, 4\)"):
            mapping.write(array.T)
        mapping.write(array)
        mapping.commit()
    np.testing.assert_array_equal(client.get("A"), array)


@pytest.mark.parametrize("dtype", ["f32", "f16", "bf16"])
def test_a_write_converts_only_if_asked_and_rounds_once(client, dtype):
    own = put(client, dtype=dtype).dtype
    exact = np.random.default_rng(1).standard_normal((4, 6)) * (1 + 2.0**-40)
    client.put("B", exact, "[M_x, K]", dtype=dtype)
    with client.map("A", writable=True) as mapping:
        for wrong in (exact, np.ones((4, 6), np.int64), np.ones((4, 6), np.float32 if dtype != "f32" else np.float16)):
            with pytest.raises(agmm.InvalidArgument, match=f'has dtype .*; pass dtype="{dtype}" to convert it'):
                mapping.write(wrong)
        with pytest.raises(agmm.InvalidArgument, match="give real numbers"):
            mapping.write(exact * 1j, dtype=dtype)
        with pytest.raises(agmm.InvalidArgument, match=f'and tensor \'A\' has {dtype}; give dtype="{dtype}"'):
            mapping.write(exact, dtype="f16" if dtype == "f32" else "f32")
        mapping.write(exact, dtype=dtype)
        mapping.commit()
        np.testing.assert_array_equal(client.get("A").view(np.uint8), client.get("B").view(np.uint8))
        mapping.renew()
        with pytest.warns(RuntimeWarning, match=f"overflow encountered in cast from float64 to {dtype}"):
            mapping.write(np.full((4, 6), 3.41e38), dtype=own)
        assert np.isinf(mapping.read().astype(np.float64)).all()


@pytest.mark.parametrize("order", [">f4", ">f2"])
def test_a_write_swaps_another_byte_order(client, order):
    array = put(client, dtype={">f4": "f32", ">f2": "f16"}[order])
    with client.map("A", writable=True) as mapping:
        mapping.write((array * 2).astype(order))
        mapping.commit()
    np.testing.assert_array_equal(client.get("A"), array * 2)


def test_a_large_write_is_converted_in_blocks(client):
    client.fill("A", (2048, 1024), "[M_x, K]", dtype="bf16")
    values = np.random.default_rng(1).standard_normal((2048, 1024))
    with client.map("A", writable=True) as mapping:
        tracemalloc.start()
        try:
            mapping.write(values, dtype="bf16")
            peak_bytes = tracemalloc.get_traced_memory()[1]
        finally:
            tracemalloc.stop()
        mapping.commit()
    assert peak_bytes < values.nbytes / 2
    client.put("B", values, "[M_x, K]", dtype="bf16")
    np.testing.assert_array_equal(client.get("A"), client.get("B"))


OVERLAPPING = {
    "backwards": lambda array: array[::-1],
    "mirrored": lambda array: array[:, ::-1],
    "transposed": lambda array: array.T,
    "one row for all": lambda array: np.broadcast_to(array[-1], array.shape),
    "itself": lambda array: array,
}


@pytest.mark.parametrize("case", OVERLAPPING)
def test_a_write_may_take_its_own_memory_in_another_order(client, case):
    array = np.arange(1024 * 1024, dtype=np.float32).reshape(1024, 1024)
    client.put("A", array, "[M, K]", ranks=[0])
    with client.map("A", writable=True) as mapping:
        mapping.write(OVERLAPPING[case](mapping.array))
        np.testing.assert_array_equal(mapping.read(), OVERLAPPING[case](array))
        mapping.commit()


def test_a_write_of_its_own_view_makes_no_copy(client):
    client.fill("A", (2048, 1024), "[M, K]", ranks=[0])
    with client.map("A", writable=True) as mapping:
        tracemalloc.start()
        try:
            mapping.write(mapping.array)
            peak_bytes = tracemalloc.get_traced_memory()[1]
        finally:
            tracemalloc.stop()
        mapping.commit()
    assert peak_bytes < 2048 * 1024 * 4 / 2


def copies_that(monkeypatch, end):
    """Has each copy of NumPy run as if another thread called `end` in the middle."""
    copy_to = np.copyto

    def copy(target, source, **options):
        target, source = target.view(np.ndarray), source.view(np.ndarray)
        end()
        copy_to(target, source, **options)

    monkeypatch.setattr(np, "copyto", copy)


def test_a_read_that_the_end_overtakes_is_an_error(client, monkeypatch):
    put(client, sharding="[M, K]")
    out = np.zeros((4, 6), np.float32)
    for given in (None, out):
        with client.map("A") as mapping:
            with monkeypatch.context() as patched:
                copies_that(patched, mapping.close)
                with pytest.raises(agmm.FailedPrecondition, match="tensor 'A' is detached from its mapping"):
                    mapping.read(given)


def test_a_write_that_the_end_overtakes_is_an_error(client, monkeypatch):
    array = put(client)
    with client.map("A", writable=True) as mapping:
        mapping.commit()
        mapping.renew()
        with monkeypatch.context() as patched:
            copies_that(patched, lambda: None)
            mapping.write(array)
        copies_that(monkeypatch, mapping.close)
        with pytest.raises(agmm.FailedPrecondition, match="tensor 'A' is detached from its mapping"):
            mapping.write(array)


def test_a_detached_array_is_no_source_of_a_write(client, monkeypatch):
    put(client)
    array = put(client, name="B", sharding="[M, K]")
    with client.map("A", writable=True) as target, client.map("B") as source:
        target.write(source.array)
        np.testing.assert_array_equal(target.read(), array)
        mapped = source.array
        with monkeypatch.context() as patched:
            copies_that(patched, lambda: source.detached or source.release())
            with pytest.raises(agmm.FailedPrecondition, match="tensor 'B' is detached"):
                target.write(mapped)
        with pytest.raises(agmm.FailedPrecondition, match="tensor 'B' is detached"):
            target.write(mapped)


@pytest.mark.parametrize("call", ["put", "put of another order", "put of a list", "matmul"])
def test_a_detached_array_is_no_operand(client, call):
    put(client, sharding="[M, K]")
    with client.map("A") as mapping:
        array, transpose, rows = mapping.array, mapping.array.T, list(mapping.array)
        calls = {
            "put": lambda progress=None: client.put("B", array, "[M, K]", progress=progress),
            "put of another order": lambda progress=None: client.put("B", transpose, "[M, K]", progress=progress),
            "put of a list": lambda: client.put("B", rows, "[M, K]"),
            "matmul": lambda: client.matmul(SPEC, array, np.ones((6, 4), np.float32)),
        }
        calls[call]()
        if call.startswith("put") and call != "put of a list":
            with pytest.raises(agmm.FailedPrecondition, match="tensor 'A' is detached"):
                calls[call](lambda moved, total: mapping.detached or mapping.release() and None)
        else:
            mapping.release()
        with pytest.raises(agmm.FailedPrecondition, match="tensor 'A' is detached"):
            calls[call]()


@pytest.mark.parametrize("transposed", [False, True])
def test_a_detached_array_takes_no_contents(client, transposed):
    array = put(client)
    client.put("B", np.zeros(array.shape[::-1] if transposed else array.shape, np.float32), "[M, K]", ranks=[0])
    with client.map("B", writable=True) as mapping:
        out = mapping.array.T if transposed else mapping.array
        assert client.get("A", out=out) is out
        np.testing.assert_array_equal(out, array)
        with pytest.raises(agmm.FailedPrecondition, match="tensor 'B' is detached"):
            client.get("A", out=out, progress=lambda moved, total: mapping.detached or mapping.commit() and None)
        with pytest.raises(agmm.FailedPrecondition, match="tensor 'B' is detached"):
            client.get("A", out=out)


def test_the_text_of_a_shard_is_short(client):
    with client.fill("A", (64, 64), "[M_x, K]").map() as mapping:
        assert repr(mapping.shards[0]) == "Shard(rank=0, rows=slice(0, 32, None), cols=slice(0, 64, None))"
