"""Files of tensors, against NumPy's and safetensors' own readers and writers."""

import errno
import os
import pathlib

import ml_dtypes
import numpy as np
import pytest
import safetensors.numpy
from safetensors import safe_open

import agmm

DTYPES = [np.float32, np.float16, ml_dtypes.bfloat16]


def bits(array):
    return np.ascontiguousarray(array).view(f"u{array.dtype.itemsize}")


def special(dtype):
    """NaN, infinities, denormals and -0.0 among ordinary values."""
    array = np.random.default_rng(3).standard_normal((6, 10)).astype(dtype)
    array[0, :6] = [np.nan, np.inf, -np.inf, -0.0, np.finfo(np.float32).smallest_subnormal, 1e-7]
    return array


@pytest.mark.parametrize("dtype", DTYPES)
def test_what_safetensors_wrote_is_loaded(client, tmp_path, dtype):
    a, b = special(dtype), special(dtype).T.copy()
    path = tmp_path / "model.safetensors"
    safetensors.numpy.save_file({"layer.0.up_proj.weight": a, "layer.0.down_proj.weight": b, "other": a}, path)
    moved = []
    done = client.load(path, shard={"*.up_proj.weight": "[N_x, K]", "*.down_proj.weight": agmm.Rule("[K, N_x]", transpose=True, name="t.*")},
                       progress=lambda now, total: moved.append((now, total)))
    assert [each.name_in_file for each in done.loaded] == sorted(["layer.0.up_proj.weight", "layer.0.down_proj.weight"])
    assert done.skipped == ["other"] and done.unused_patterns == []
    assert list(done) == [each.name_in_file for each in done.loaded] and len(done.loaded) == 2
    assert "layer.0.up_proj.weight" in done and "other" not in done
    up, down = done["layer.0.up_proj.weight"], done["layer.0.down_proj.weight"]
    assert down.name == "t.layer.0.down_proj.weight"
    assert (bits(up.numpy()) == bits(a)).all() and (bits(down.numpy()) == bits(b.T)).all()
    assert moved[-1] == (2 * a.nbytes, 2 * a.nbytes)


@pytest.mark.parametrize("dtype", DTYPES)
def test_safetensors_reads_what_was_saved(client, tmp_path, dtype):
    a, b = special(dtype), np.ones((3, 5), np.float32)
    client.put("file.A", a, "[M_x, K]")
    client.put("file.B", b, "[M, N_x]")
    path = tmp_path / "out.safetensors"
    client.save(path, ["file.A", "file.B"], metadata={"format": "np"})
    with safe_open(path, framework="np") as file:
        assert file.metadata() == {"format": "np"}
        assert (bits(file.get_tensor("file.A")) == bits(a)).all()
        assert (file.get_tensor("file.B") == b).all()


def test_npy_files_are_numpys(client, tmp_path):
    a = special(np.float32)
    np.save(tmp_path / "weights.npy", np.asfortranarray(a))
    done = client.load(tmp_path / "weights.npy", {"*": "[M_x, N]"})
    assert done.loaded[0].tensor.name == "weights"
    client.save(tmp_path / "again.npy", [done["weights"]])
    assert (bits(np.load(tmp_path / "again.npy")) == bits(a)).all()


@pytest.mark.parametrize("values", [np.arange(5, dtype=np.float32), np.float32(7)])
@pytest.mark.parametrize("ending", ["npy", "safetensors"])
def test_one_dimension_becomes_a_row_and_none_an_element(client, tmp_path, values, ending):
    path = tmp_path / f"flat.{ending}"
    if ending == "npy":
        np.save(path, values)
    else:
        safetensors.numpy.save_file({"flat": np.asarray(values)}, path)
    loaded = client.load(path, {"*": "[M, N]"})["flat"]
    np.testing.assert_array_equal(loaded.numpy(), np.atleast_2d(values))


def test_a_pattern_of_none_skips_and_strict_refuses_the_rest(client, tmp_path):
    path = tmp_path / "two.safetensors"
    safetensors.numpy.save_file({"kept": np.ones((2, 2), np.float32), "left": np.ones((2, 2), np.float32)}, path)
    done = client.load(path, {"left": None, "*": "[M, N]"})
    assert [each.name_in_file for each in done.loaded] == ["kept"] and done.skipped == ["left"]
    with pytest.raises(agmm.InvalidArgument, match="left"):
        client.load(path, {"kept": "[M, N]"}, strict=True)
    with pytest.raises(agmm.NotFound, match="left"):
        done["left"]


def test_errors_name_the_file_and_the_tensor(client, tmp_path):
    path = tmp_path / "bad.safetensors"
    safetensors.numpy.save_file({"deep": np.ones((2, 2, 2), np.float32), "ints": np.ones((2, 2), np.int32)}, path)
    with pytest.raises(agmm.InvalidArgument, match="bad.safetensors.*deep"):
        client.load(path, {"deep": "[M, N]"})
    with pytest.raises(agmm.InvalidArgument, match="bad.safetensors.*ints"):
        client.load(path, {"ints": "[M, N]"})
    for kind in (agmm.InvalidArgument, FileNotFoundError):
        with pytest.raises(kind, match="missing.npy"):
            client.load(tmp_path / "missing.npy", {"*": "[M, N]"})
        with pytest.raises(kind, match="no/x.safetensors") as raised:
            client.save(tmp_path / "no" / "x.safetensors", [client.put("S", np.ones((2, 2), np.float32), "[M, N]")])
        assert raised.value.reason == "FILE_NOT_FOUND" and raised.value.errno == errno.ENOENT
    with pytest.raises(agmm.InvalidArgument, match='tensor "S" is given twice; a file has each tensor once'):
        client.save(tmp_path / "x.safetensors", ["S", "S"])
    np.save(tmp_path / "double.npy", np.ones((2, 2)))
    with pytest.raises(agmm.InvalidArgument, match=r"is float64, which is not converted .*: numpy.save\("):
        client.load(tmp_path / "double.npy", {"*": agmm.Rule("[M, N]", dtype="f32")})
    with pytest.raises(agmm.InvalidArgument, match="a list"):
        client.save(tmp_path / "x.npy", "file.A")
    with pytest.raises(agmm.NotFound, match="absent"):
        client.save(tmp_path / "x.npy", ["absent"])
    assert not (tmp_path / "x.npy").exists()


def test_what_progress_raises_ends_the_load(client, tmp_path):
    class Enough(Exception):
        pass

    def progress(now, total):
        raise Enough

    path = tmp_path / "model.safetensors"
    safetensors.numpy.save_file({"w": np.ones((512, 1024), np.float32)}, path)
    with pytest.raises(Enough):
        client.load(path, {"w": agmm.Rule("[M, N]", name="stopped")}, progress=progress)


def test_loads_and_saves_can_be_awaited(daemon, tmp_path):
    import asyncio

    import agmm.aio

    async def main():
        async with agmm.aio.connect(daemon.endpoint) as client:
            await client.put("aio.W", np.ones((4, 4), np.float32), "[M, N]")
            await client.save(tmp_path / "w.safetensors", ["aio.W"])
            done = await client.load(tmp_path / "w.safetensors", {"*": agmm.Rule("[M, N_x]", name="back.*")})
            assert type(done["aio.W"]) is agmm.aio.AsyncTensor and done["aio.W"] is done.loaded[0].tensor
            assert (await done["aio.W"].numpy() == 1).all()
            return done

    assert asyncio.run(main())["aio.W"].name == "back.aio.W"


@pytest.mark.parametrize("name", [b"\xff.npy", b"\xff.safetensors"])
@pytest.mark.parametrize("kind", [os.fsencode, os.fsdecode, lambda path: pathlib.Path(os.fsdecode(path))],
                         ids=["bytes", "str", "Path"])
def test_a_path_need_not_be_utf_8(client, tmp_path, name, kind):
    array = special(np.float32)
    path = kind(os.path.join(os.fsencode(tmp_path), name))
    client.save(path, [client.put("P", array, "[M, N]")])
    done = client.load(path, {"*": agmm.Rule("[M, N]", name="Q")})
    assert done.loaded[0].name_in_file == ("\udcff" if name.endswith(b".npy") else "P")
    assert (bits(client.get("Q")) == bits(array)).all()


def test_errors_of_a_path_that_is_not_utf_8_are_texts(client, tmp_path):
    path = os.path.join(tmp_path, os.fsdecode(b"\xff.npy"))
    for call in (lambda: client.load(path, {"*": "[M, N]"}), lambda: client.save(path, ["absent"])):
        with pytest.raises(agmm.Error, match=r"\\xff\.npy") as raised:
            call()
        assert str(raised.value).isascii() and "\n" not in str(raised.value)
    np.save(path, np.ones((2, 2), np.float32))
    with pytest.raises(agmm.InvalidArgument):  # a name on the devices is UTF-8
        client.load(path, {"*": "[M, N]"})


def test_texts_that_cannot_be_written_are_refused(client, tmp_path):
    path = tmp_path / "x.safetensors"
    client.put("S", np.ones((2, 2), np.float32), "[M, N]")
    for call in (lambda: client.load("\ud800.npy", {}),
                 lambda: client.save("\ud800.npy", ["S"]),
                 lambda: client.save("a\0b.npy", ["S"]),
                 lambda: client.save(path, ["\ud800"]),
                 lambda: client.save(path, ["S"], metadata={"key": "\udcff"}),
                 lambda: client.save(path, ["S"], metadata={"\udcff": "value"}),
                 lambda: client.load(path, {"\udcff": "[M, N]"}),
                 lambda: client.load(path, {"*": agmm.Rule("[M, N]", name="\udcff")})):
        with pytest.raises(agmm.InvalidArgument) as raised:
            call()
        assert "\n" not in str(raised.value)
    assert list(tmp_path.iterdir()) == []
