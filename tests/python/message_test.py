"""Errors in the words of this package: they name the argument, and the call that helps."""

import asyncio
import re
import subprocess
import warnings

import agmm
import agmm.aio
import ml_dtypes
import numpy as np
import pytest
from agmm import programs
from support import A, B, SPEC

pytestmark = pytest.mark.usefixtures("operands")

RESHARD = "A[M_x, K] -> D[M, K]"

MESSAGES = {
    "no result": (lambda client: client.submit(SPEC, "A", "B"),
                  "c is missing; give a Tensor or a name for each of a, b, c; c is the result"),
    "no second operand": (lambda client: client.run(SPEC, "A"), "b, c are missing"),
    "no result of one operand": (lambda client: client.run(RESHARD, "A"), "b is missing; give a Tensor or a name for each of a, b"),
    "an empty name": (lambda client: client.run(SPEC, "A", "B", ""), "c is missing"),
    "too many chunks": (lambda client: client.run(SPEC, "A", "B", "C", chunks=1000), "the number of chunks a shard is 1000, outside [0, 256]"),
    "too many chunks along K": (lambda client: client.run(SPEC, "A", "B", "C", k_chunks=1000), "the number of chunks along K is 1000"),
    "too much work": (lambda client: client.run(SPEC, "A", "B", "C", repeat=10**7), "the number of repeats is 10000000, outside [0, 1000000]"),
    "a fill without rows": (lambda client: client.fill("F", (0, 8), "[M, N]"), "the number of rows is 0; give 1 to"),
    "a tensor without columns": (lambda client: client.create("F", (8, 0), "[M, N]"), "the number of columns is 0; give 1 to"),
    "too many rows": (lambda client: client.fill("F", (2**40, 8), "[M, N]"), "the number of rows is 1099511627776, outside [1, "),
    "a job of an array": (lambda client: client.run(SPEC, A, "B", "C"),
                          "an ndarray is not a tensor; give a Tensor or its name: Client.put makes a tensor from an array, and "
                          "Client.matmul takes arrays"),
    "a job of arrays by operand": (lambda client: client.run(SPEC, tensors={"A": A, "B": B, "C": "C"}), "Client.matmul takes arrays"),
    "a matmul that is no product": (lambda client: client.matmul(RESHARD, A, A),
                                    "is not a product; write it like 'A[M_x, K] * B[K, N_x] -> C[M, N_x]'; use Client.run for other specs"),
    "arrays of two dtypes": (lambda client: client.matmul(SPEC, A, B.astype(np.float16)),
                             'a is f32 and b is f16, and a product takes one dtype; pass dtype="f32", which converts arrays'),
    "a tensor and an array": (lambda client: client.matmul(SPEC, A, client.put("H", B, "[K, N_x]", dtype="f16")),
                              'a is f32 and b is f16, and a product takes one dtype; pass dtype="f16"'),
    "a dtype for tensors": (lambda client: client.matmul(SPEC, client.tensor("A"), "B", dtype="bf16"),
                            'dtype is bf16, which converts arrays, and a and b are tensors; name the result\'s dtype in the '
                            'spec: "-> C[M, N_x]:bf16"'),
    "a wrong dtype for tensors": (lambda client: client.matmul(SPEC, "A", "B", dtype="f99"), "dtype 'f99' is not one of"),
    "tensors of two dtypes": (lambda client: client.matmul(SPEC, client.tensor("A"), client.put("H", B, "[K, N_x]", dtype="bf16")),
                              "put one of them in the other's dtype"),
}


@pytest.mark.parametrize("case", MESSAGES)
def test_a_message_names_the_arguments_of_the_call(client, case):
    call, message = MESSAGES[case]
    with pytest.raises(agmm.InvalidArgument, match=re.escape(message)) as raised:
        call(client)
    assert "\n" not in str(raised.value)


def test_an_array_beside_a_name_of_another_dtype_is_named_by_its_argument(client):
    with pytest.raises(agmm.FailedPrecondition, match="but b stands for B and is f16; .* with dtype=, which converts arrays") as raised:
        client.matmul(SPEC, "A", B.astype(np.float16))
    assert "agmm.python" not in str(raised.value)


def test_a_result_of_another_shape_says_that_it_can_be_deleted(client):
    client.run(SPEC, "A", "B", "C")
    with pytest.raises(agmm.FailedPrecondition, match='"C" stands for .*; delete it, so that the job makes a new one'):
        client.matmul(SPEC, A[:20], "B", out="C")


NOT_REAL = {
    "complex": np.ones((2, 2), complex),
    "text": np.array([["a", "b"]]),
    "times": np.array([["2020-01-01"]], "M8[D]"),
    "records": np.zeros((2, 2), "f4,f4"),
}


@pytest.mark.parametrize("case", NOT_REAL)
@pytest.mark.parametrize("dtype", [None, "f32"])
def test_elements_that_are_no_real_numbers_are_not_offered_a_conversion(client, case, dtype):
    with pytest.raises(agmm.InvalidArgument, match=r"has dtype .*, which cannot become f32; give real numbers$"):
        client.put("P", NOT_REAL[case], "[M, N]", dtype=dtype)


@pytest.mark.parametrize("dtype", [None, "f32"])
def test_an_array_of_objects_is_told_apart(client, dtype):
    with pytest.raises(agmm.InvalidArgument, match=r"has dtype object; give numbers, such as numpy.asarray\(array, numpy.float32\)"):
        client.put("P", np.array([[1, None]]), "[M, N]", dtype=dtype)


GONE = {
    "get": lambda client, gone: gone.numpy(),
    "get into an array of another order": lambda client, gone: client.get(gone, out=np.empty((30, 50), np.float32).T),
    "map": lambda client, gone: gone.map(),
    "delete": lambda client, gone: gone.delete(),
    "save": lambda client, gone: client.save("unused.npy", [gone]),
    "submit": lambda client, gone: client.submit(SPEC, gone, "B", "C"),
    "run": lambda client, gone: client.run(SPEC, "A", "B", gone),
    "run by operand": lambda client, gone: client.run(SPEC, tensors={"A": gone, "B": "B", "C": "C"}),
    "matmul": lambda client, gone: client.matmul(SPEC, gone, B),
    "matmul into it": lambda client, gone: client.matmul(SPEC, A, B, out=gone),
}


@pytest.mark.parametrize("case", GONE)
def test_a_handle_whose_tensor_is_gone_names_it(client, case):
    gone = client.put("W", A, "[M_x, K]")
    client.put("W", A[:20], "[M_x, K]")
    with pytest.raises(agmm.NotFound, match=r"^(tensor \S+ was not saved to unused.npy: )?the tensor 'W' of this handle is gone: .*client.tensor\('W'\)"):
        GONE[case](client, gone)


def test_a_handle_of_asyncio_whose_tensor_is_gone_names_it(daemon):
    async def main():
        async with agmm.aio.connect(daemon.endpoint, session=True) as client:
            gone = await client.put("W", A, "[M_x, K]")
            await client.put("W", A[:20], "[M_x, K]")
            for call in (lambda: gone.numpy(), lambda: client.run(SPEC, gone, "B", "C"), lambda: client.matmul(SPEC, gone, B)):
                with pytest.raises(agmm.NotFound, match="the tensor 'W' of this handle is gone"):
                    await call()

    asyncio.run(main())


def agmmctl(daemon, *arguments):
    return subprocess.run([programs.find("agmmctl"), "--endpoint", daemon.endpoint, *arguments], capture_output=True, text=True)


def test_agmmctl_takes_handles(client, daemon, tmp_path):
    a, b = client.tensor("A"), client.tensor("B")
    c = client.create("C", (50, 40), "[M, N_x]")
    bound = f"A={a.handle},B={b.handle},C={c.handle}"
    for arguments in (("tensor", "show", a.handle), ("tensor", "get", a.handle, str(tmp_path / "a.npy")),
                      ("tensor", "put", a.handle, str(tmp_path / "a.npy")), ("tensor", "fill", b.handle, "--kind", "integers"),
                      ("tensor", "save", str(tmp_path / "a.safetensors"), a.handle),
                      ("job", "submit", "--wait", "--spec", SPEC, "--bind", bound)):
        done = agmmctl(daemon, *arguments)
        assert done.returncode == 0, done.stderr
    np.testing.assert_array_equal(np.load(tmp_path / "a.npy"), A)
    np.testing.assert_array_equal(c.numpy(), A @ b.numpy())
    assert agmmctl(daemon, "tensor", "rm", c.handle).returncode == 0
    with pytest.raises(agmm.NotFound):
        c.numpy()


def test_agmmctl_refuses_handles_of_another_daemon(client, daemon, tmp_path):
    with agmm.local(1, heap="16MiB", threads=1) as other:
        foreign = [other.put(name, A, "[M, K]").handle for name in ("A", "B", "C")]
    np.save(tmp_path / "a.npy", A)
    bound = f"A=A,B=B,C={foreign[2]}"
    for arguments in (("tensor", "show", foreign[0]), ("tensor", "put", foreign[0], str(tmp_path / "a.npy")),
                      ("tensor", "fill", foreign[0]), ("tensor", "rm", foreign[0]), ("job", "submit", "--spec", SPEC, "--bind", bound)):
        done = agmmctl(daemon, *arguments)
        assert done.returncode != 0 and done.stdout == "", arguments
    assert {tensor.name for tensor in client.tensors()} == {"A", "B"}
    np.testing.assert_array_equal(client.get("A"), A)


def test_agmmctl_says_that_the_file_comes_first(client, daemon, tmp_path):
    done = agmmctl(daemon, "tensor", "save", "A", str(tmp_path / "a.safetensors"))
    assert f"the file comes first: agmmctl tensor save {tmp_path}/a.safetensors A" in done.stderr


TOO_LARGE = {
    "float64 to f32": (np.array([[1e300, 1.0]]), "f32"),
    "float64 to f16": (np.array([[1e5, 1.0]]), "f16"),
    "float64 to bf16": (np.array([[1e300, 1.0]]), "bf16"),
    "float64 to bf16, just above": (np.array([[3.4e38, 1.0]]), "bf16"),
    "float32 to bf16": (np.array([[3.4e38, 1.0]], np.float32), "bf16"),
    "bfloat16 to f16": (np.array([[1e5, 1.0]], ml_dtypes.bfloat16), "f16"),
    "float32 to f16": (np.array([[1e5, 1.0]], np.float32), "f16"),
    "integers to f16": (np.array([[10**6, 1]]), "f16"),
}


@pytest.mark.parametrize("case", TOO_LARGE)
def test_elements_that_become_infinite_give_numpys_warning(client, case):
    array, dtype = TOO_LARGE[case]
    with pytest.warns(RuntimeWarning, match=f"overflow encountered in cast from {array.dtype} to {dtype}") as warned:
        tensor = client.put("P", array, "[M, N]", dtype=dtype)
    assert [each.filename for each in warned] == [__file__]
    assert np.isinf(tensor.numpy()[0, 0]) and tensor.numpy()[0, 1] == 1
    with pytest.warns(RuntimeWarning, match="overflow encountered") as warned:
        client.matmul("X[M_x, K] * Y[K, N_x] -> Z[M, N_x]", array.T, np.ones((1, 2)), dtype=dtype)
    assert [each.filename for each in warned] == [__file__]


def test_other_conversions_give_no_warning(client):
    values = np.array([[np.inf, np.nan, 1e-300, 3.0, -0.0]])
    largest = np.array([[float(ml_dtypes.finfo(ml_dtypes.bfloat16).max), -np.inf]])
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for dtype in ("f32", "bf16", "f16"):
            client.put("P", values, "[M, N]", dtype=dtype)
        for given in (largest, largest.astype(np.float32)):
            client.put("P", given, "[M, N]", dtype="bf16")
        client.put("P", np.array([[np.inf, 1.0]], ml_dtypes.bfloat16).T, "[M, N]")
