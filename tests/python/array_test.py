"""Arrays in and out: one table of layouts, for each dtype, and one of refused arrays."""

import re
import tracemalloc

import agmm
import ml_dtypes
import numpy as np
import pytest
from agmm import _agmm, arrays

DTYPES = {"f32": np.dtype(np.float32), "bf16": np.dtype(ml_dtypes.bfloat16), "f16": np.dtype(np.float16)}
ROWS, COLS = 256, 256
BITS = {2: np.uint16, 4: np.uint32}


def bits_of(array):
    return np.ascontiguousarray(array).view(BITS[array.dtype.itemsize])


def all_kinds_of_bits(dtype):
    """Each pattern of a 16-bit type; for f32 the upper halves of all patterns: NaN, Inf, denormals and -0.0 among them."""
    halves = np.arange(ROWS * COLS, dtype=np.uint32).reshape(ROWS, COLS)
    words = halves if dtype.itemsize == 2 else (halves << 16) + halves % 3
    return words.astype(BITS[dtype.itemsize]).view(dtype)


def unaligned(array):
    memory = np.zeros(array.nbytes + 1, np.uint8)
    memory[1:] = np.frombuffer(array.tobytes(), np.uint8)
    return np.ndarray(array.shape, array.dtype, memory, offset=1)


def spread(array):
    """The same values in every second row and third column of a larger array."""
    larger = np.zeros((2 * array.shape[0], 3 * array.shape[1]), array.dtype)
    larger[::2, ::3] = array
    return larger[::2, ::3]


class DLPackAlone:
    def __init__(self, array, device=None):
        self.array, self.device = array, device

    def __dlpack__(self, **arguments):
        return self.array.__dlpack__(**arguments)

    def __dlpack_device__(self):
        return self.device or self.array.__dlpack_device__()


class ArrayAlone:
    def __init__(self, array):
        self.array = array

    def __array__(self, dtype=None, copy=None):
        return self.array


class Spread(ArrayAlone):
    """An array over several devices, as jax has them."""

    def __dlpack_device__(self):
        raise BufferError("__dlpack__ only supported for unsharded arrays")


LAYOUTS = {
    "C order": lambda array: array,
    "Fortran order": np.asfortranarray,
    "transposed": lambda array: np.ascontiguousarray(array.T).T,
    "strided": spread,
    "strided and transposed": lambda array: spread(array.T).T,
    "backwards": lambda array: np.ascontiguousarray(array[::-1, ::-1])[::-1, ::-1],
    "part of a larger one": lambda array: np.pad(array.view(BITS[array.itemsize]), 7).view(array.dtype)[7:-7, 7:-7],
    "read-only": lambda array: np.frombuffer(array.tobytes(), array.dtype).reshape(array.shape),
    "unaligned": unaligned,
    "a memoryview": lambda array: memoryview(array) if array.dtype != DTYPES["bf16"] else array,
    "an object with __array__": ArrayAlone,
    "an array over several devices": Spread,
    "an object with DLPack alone": lambda array: DLPackAlone(array) if array.dtype != DTYPES["bf16"] else array,
}


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("name", DTYPES)
def test_all_bits_survive_in_every_layout(client, name, layout):
    array = all_kinds_of_bits(DTYPES[name])
    tensor = client.put("A", LAYOUTS[layout](array), "[M_x, K]")
    assert (tensor.shape, tensor.dtype) == (array.shape, array.dtype)
    got = tensor.numpy()
    assert got.dtype == array.dtype and got.flags.c_contiguous
    np.testing.assert_array_equal(bits_of(got), bits_of(array))


@pytest.mark.parametrize("layout", ["C order", "Fortran order", "strided", "strided and transposed", "backwards",
                                    "part of a larger one", "unaligned"])
@pytest.mark.parametrize("name", DTYPES)
def test_a_get_writes_into_an_array_of_any_layout(client, name, layout):
    array = all_kinds_of_bits(DTYPES[name])
    tensor = client.put("A", array, "[M_x, K]")
    out = LAYOUTS[layout](np.zeros_like(array))
    assert client.get(tensor, out=out) is out
    np.testing.assert_array_equal(bits_of(out), bits_of(array))
    owner = out if out.base is None else out.base
    owned = owner.ravel(order="K").view(np.uint8)
    assert np.count_nonzero(owned) == np.count_nonzero(bits_of(array).view(np.uint8)), "bytes beside `out` changed"


@pytest.mark.parametrize("shape", [(1, 1), (1, 300_001), (300_001, 1), (3, 400_000), (70_001, 5), (1031, 523)])
def test_blocks_may_end_within_rows(client, shape):
    array = np.arange(shape[0] * shape[1], dtype=np.float32).reshape(shape)
    tensor = client.put("A", spread(array), "[M, K]")
    np.testing.assert_array_equal(client.get("A"), array)
    out = np.zeros(shape[::-1], np.float32).T
    np.testing.assert_array_equal(client.get(tensor, out=out), array)


CONVERTED = {
    "float64": np.array([[1 / 3, 1e300, -1e-300], [np.nan, -0.0, 65504.0]]),
    "float64 in Fortran order": np.asfortranarray([[1 / 3, 1e300, -1e-300], [np.nan, -0.0, 65504.0]]),
    "float32": np.array([[1 / 3, 3e38, 1e-40], [np.nan, -0.0, 65504.0]], np.float32),
    "int64": np.array([[1, -(2**53) - 1, 2**31], [0, 7, -9]]),
    "bool": np.array([[True, False], [False, True]]),
    "uint8": np.array([[1, 255], [0, 3]], np.uint8),
    "fp8": np.array([[1.5, -2], [0.25, 448]]).astype(ml_dtypes.float8_e4m3fn),
    "a list": [[1, 2.5], [3, 4]],
}


@pytest.mark.filterwarnings("ignore:overflow encountered")
@pytest.mark.parametrize("given", CONVERTED)
@pytest.mark.parametrize("name", DTYPES)
def test_a_dtype_converts_as_numpy_does(client, name, given):
    with np.errstate(all="ignore"):
        expected = np.asarray(CONVERTED[given]).astype(DTYPES[name])
    got = client.put("A", CONVERTED[given], "[M_x, K]", dtype=name).numpy()
    np.testing.assert_array_equal(bits_of(got), bits_of(expected))


NEAR_TIES = {
    "float64": np.array([[1 + 2**-8 + 2**-40, 1 + 2**-8 - 2**-40, -1 - 2**-8 - 2**-40, 1 + 2**-8, 1 + 3 * 2**-8]]),
    "int64": np.array([[2**62 + 2**54 + 1, 2**62 + 2**54 - 1, -(2**62) - 2**54 - 1, 2**62 + 2**54, 2**62 + 3 * 2**54]]),
    "int32": np.array([[2**30 + 2**22 + 1, 2**30 + 2**22 - 1, -(2**30) - 2**22 - 1, 2**30 + 2**22, 2**30 + 3 * 2**22]], np.int32),
}


@pytest.mark.parametrize("given", NEAR_TIES)
def test_bf16_is_rounded_once(client, given):
    values = NEAR_TIES[given]
    one, ulp = abs(float(values[0, 3])) / (1 + 2**-8), 2**-7
    got = client.put("A", values, "[M, K_x]", dtype="bf16").numpy().astype(np.float64)
    assert (got / one).tolist() == [[1 + ulp, 1, -1 - ulp, 1, 1 + 2 * ulp]]


def test_longdouble_is_rounded_once(client):
    one, small = np.longdouble(1), np.longdouble(2)**-60
    tie, subnormal = one + np.longdouble(2)**-11, np.longdouble(2)**-25
    tiny = np.longdouble("1e-4000")
    values = np.array([[tie + small, tie, tie - small, -tie - small, subnormal * (one + small), subnormal, tiny, 65504,
                        -np.inf, np.nan]])
    ulp, least = 2**-10, 2**-24
    got = client.put("A", values, "[M, K]", dtype="f16").numpy()
    np.testing.assert_array_equal(got, [[1 + ulp, 1, 1, -1 - ulp, least, 0, 0, 65504, -np.inf, np.nan]])
    with pytest.warns(RuntimeWarning, match="overflow encountered in cast from .* to f16"):
        assert np.isinf(client.put("A", values * 2, "[M, K]", dtype="f16").numpy()[0, 7])


@pytest.mark.parametrize("order", [">f4", ">f2"])
def test_another_byte_order_is_swapped(client, order):
    array = all_kinds_of_bits(np.dtype(order[1:]))
    got = client.put("A", array.astype(order), "[M_x, K]").numpy()
    finite = np.isfinite(array)
    np.testing.assert_array_equal(bits_of(got)[finite], bits_of(array)[finite])


@pytest.mark.parametrize("given", ["f16", np.float16, np.dtype("float16"), "float16", "e"])
def test_a_dtype_has_several_names(client, given):
    assert client.create("A", (2, 3), "[M_x, K]", dtype=given).dtype == np.float16


class OnGpu(DLPackAlone):
    def __array__(self):
        raise AssertionError("it must not be read")


F32 = np.zeros((4, 6), np.float32)

REFUSED = {
    "one dimension": (np.zeros(6, np.float32), {}, r"1 dimensions, shape (6,); give a matrix, such as array.reshape(1, 6)"),
    "three dimensions": (np.zeros((2, 3, 4), np.float32), {}, r"3 dimensions"),
    "text alone": ("[M_x, K]", {}, r"the array is '[M_x, K]', a str; give a matrix"),
    "a number": (3.5, {}, r"0 dimensions"),
    "no rows": (np.zeros((0, 6), np.float32), {}, r"shape (0, 6); give at least one row"),
    "no columns": (np.zeros((6, 0), np.float32), {}, r"shape (6, 0)"),
    "float64": (np.zeros((4, 6)), {}, r'dtype float64; pass dtype="f32"'),
    "integers": (np.zeros((4, 6), np.int32), {}, r'dtype int32; pass dtype="f32"'),
    "complex": (np.zeros((4, 6), complex), {"dtype": "f32"}, r"complex128, which cannot become f32"),
    "text": (np.array([["a", "b"]]), {"dtype": "f32"}, r"<U1, which cannot become f32"),
    "records": (np.zeros((2, 2), "f4,f4"), {}, r"give real numbers"),
    "objects": (np.array([[1, None]]), {}, r"has dtype object; give numbers"),
    "None": (None, {}, r"is a NoneType, not an array of numbers"),
    "rows of two lengths": ([[1, 2], [3]], {}, r"is a list, which is not an array"),
    "a masked array": (np.ma.zeros((4, 6)), {}, r"masked array; give array.filled(value)"),
    "masked rows": ([np.ma.masked_equal(row, 1) for row in np.eye(6, dtype=np.float32)], {},
                    r"a list of masked arrays; give numpy.ma.stack(rows).filled(value)"),
    "an array on a GPU": (OnGpu(F32, (2, 0)), {}, r"DLPack's device (2, 0); copy it to host memory"),
    "an unknown dtype": (F32, {"dtype": "f8x"}, r"dtype 'f8x' is not one of f32, bf16 and f16"),
    "a dtype agmm lacks": (F32, {"dtype": np.float64}, r"is not one of f32, bf16 and f16"),
    "a dtype with a comma": (F32, {"dtype": "f4,,"}, r"dtype 'f4,,' is not one of"),
    "a dtype of a lone surrogate": (F32, {"dtype": "\ud800"}, r"dtype '\ud800' is not one of"),
    "a dtype of many elements": (F32, {"dtype": "1000000000000f4"}, r"is not one of"),
    "a dtype with a name twice": (F32, {"dtype": {"names": ["a", "a"], "formats": ["f4", "f4"]}}, r"is not one of"),
    "a sharding with a fault": (F32, {"sharding": "[M_y, K]"}, r"y"),
    "a mesh with a fault": (F32, {"mesh": "x=0"}, r"x"),
    "a timeout of 0": (F32, {"timeout": 0}, r"timeout is 0 s; give more than 0 s"),
    "a timeout of NaN": (F32, {"timeout": float("nan")}, r"timeout is nan s"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_a_refused_array_gets_one_clear_line(client, case):
    array, options, message = REFUSED[case]
    sharding = options.get("sharding", "[M_x, K]")
    with pytest.raises(agmm.InvalidArgument, match=re.escape(message)) as raised:
        client.put("A", array, sharding, **{name: value for name, value in options.items() if name != "sharding"})
    assert "\n" not in str(raised.value) or "^" in str(raised.value)  # a caret below the fault
    assert isinstance(raised.value, ValueError) and raised.value.code == "INVALID_ARGUMENT"
    with pytest.raises(agmm.NotFound):
        client.tensor("A")


REFUSED_OUT = {
    "another shape": (np.zeros((6, 4), np.float32), r"shape (6, 4) and dtype float32; the tensor has (4, 6)"),
    "another dtype": (np.zeros((4, 6), np.float16), r"dtype float16; the tensor has (4, 6) and float32"),
    "a read-only array": (np.broadcast_to(np.float32(0), (4, 6)), r"out is read-only"),
    "a list": ([[0.0] * 6] * 4, r"dtype float64"),
    "one row for all": (np.lib.stride_tricks.as_strided(np.zeros(6, np.float32), (4, 6), (0, 4)), r"its elements overlap"),
    "rows that overlap": (np.lib.stride_tricks.as_strided(np.zeros(99, np.float32), (4, 6), (20, 4)), r"its elements overlap"),
}


@pytest.mark.parametrize("case", REFUSED_OUT)
def test_a_refused_out_gets_one_clear_line(client, case):
    out, message = REFUSED_OUT[case]
    client.put("A", F32, "[M_x, K]")
    with pytest.raises(agmm.InvalidArgument, match=re.escape(message)) as raised:
        client.get("A", out=out)
    assert "\n" not in str(raised.value)


@pytest.mark.parametrize("block_of", [lambda *given: arrays.reader_of(*given, print), arrays.writer_of])
@pytest.mark.parametrize("offset_bytes, size_bytes", [(-4, 8), (92, 8), (2, 4), (0, 3), (400, 4)])
def test_a_block_outside_the_array_is_refused(block_of, offset_bytes, size_bytes):
    array = np.zeros((4, 6), np.float32)
    with pytest.raises(agmm.FailedPrecondition, match="are not elements of an array of 96 bytes"):
        block_of(array, array.dtype)(offset_bytes, memoryview(bytearray(size_bytes)))


@pytest.mark.parametrize("layout", ["C order", "Fortran order", "strided"])
def test_no_layout_is_copied_as_a_whole(client, layout):
    array = np.zeros((4096, 1024), np.float32)
    given, out = LAYOUTS[layout](array), LAYOUTS[layout](array)
    tracemalloc.start()
    try:
        client.get(client.put("A", given, "[M_x, K]"), out=out)
        peak_bytes = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak_bytes < array.nbytes / 8, "there is a copy"


@pytest.mark.parametrize("name", DTYPES)
def test_c_order_is_handed_over_in_place(client, name, monkeypatch):
    def refuse(*_):
        raise AssertionError("it goes through blocks")

    monkeypatch.setattr("agmm.arrays.reader_of", refuse)
    monkeypatch.setattr("agmm.arrays.writer_of", refuse)
    array = all_kinds_of_bits(DTYPES[name])
    array.flags.writeable = False
    for given in (array, array[3:40], array.reshape(1, -1)):
        got = client.put("A", given, "[M, K_x]", dtype=name).numpy()
        np.testing.assert_array_equal(bits_of(got), bits_of(given))
    with pytest.raises(AssertionError):
        client.put("A", array.T, "[M, K_x]")


def test_a_put_and_a_get_report_their_progress(client):
    array = np.zeros((1024, 1024), np.float32)
    for given in (array, array.T):
        put, got = [], []
        client.put("A", given, "[M_x, K]", progress=lambda *bytes: put.append(bytes))
        client.get("A", out=array, progress=lambda *bytes: got.append(bytes))
        for seen in (put, got):
            assert seen[-1] == (array.nbytes, array.nbytes)
            assert [moved for moved, _ in seen] == sorted(moved for moved, _ in seen)


@pytest.mark.parametrize("given", [F32, F32.T])
def test_an_exception_of_progress_ends_the_transfer(client, given):
    def refuse(moved, total):
        raise LookupError("enough")

    with pytest.raises(LookupError, match="enough"):
        client.put("A", np.zeros((4096, 1024), np.float32), "[M_x, K]", progress=refuse)
    client.put("B", given, "[M_x, K]")
    with pytest.raises(LookupError, match="enough"):
        client.get("B", progress=refuse)


def test_views_of_blocks_outlive_the_transfer(client):
    """They stay in the frames of a traceback."""
    spec = _agmm.TensorSpec(*F32.shape, 0, "[M, K]", "x=1", [])
    kept = []

    def refuse(offset_bytes, view):
        block = np.frombuffer(view, np.uint8)
        kept.append((block, block.copy()))
        raise LookupError

    client.put("A", F32, "[M, K]")
    for transfer in (lambda: client._client.put_blocks("B", spec, refuse, None, 0, _agmm.Stop()),
                     lambda: client._client.get_blocks("A", refuse, None, 0, _agmm.Stop())):
        with pytest.raises(LookupError):
            transfer()
    for value in range(30):
        client.put("B", np.full((1024, 512), value, np.float32), "[M, K]").numpy()
    assert len(kept) == 2
    for block, copy in kept:
        np.testing.assert_array_equal(block, copy)


def test_asarray_of_a_tensor_fetches_it(client):
    array = np.arange(24, dtype=np.float32).reshape(4, 6)
    tensor = client.put("A", array, "[M_x, K]")
    np.testing.assert_array_equal(np.asarray(tensor), array)
    np.testing.assert_array_equal(np.asarray(tensor, np.float64), array)
    with pytest.raises(ValueError, match="is a copy"):
        np.array(tensor, copy=False)
