"""Tensors of PyTorch as arrays: read and written in place, every layout and dtype."""

import re

import agmm
import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="torch is not installed")

DTYPES = {"f32": torch.float32, "bf16": torch.bfloat16, "f16": torch.float16}


def tensor_of(dtype):
    """Each pattern of a 16-bit type, or as many patterns of f32."""
    if dtype == torch.float32:
        return torch.arange(0, 2**32, 2**16, dtype=torch.int64).to(torch.int32).reshape(256, 256).view(dtype)
    return torch.arange(2**16, dtype=torch.int32).to(torch.int16).reshape(256, 256).view(dtype)


def bits_of(tensor):
    return tensor.detach().contiguous().view(torch.int32 if tensor.dtype == torch.float32 else torch.int16).numpy()


LAYOUTS = {
    "contiguous": lambda tensor: tensor,
    "transposed": lambda tensor: tensor.t().contiguous().t(),
    "strided": lambda tensor: tensor.repeat_interleave(2, 0)[::2],
    "a parameter": lambda tensor: torch.nn.Parameter(tensor),
}


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("name", DTYPES)
def test_all_bits_survive(client, name, layout):
    given = tensor_of(DTYPES[name])
    put = client.put("T", LAYOUTS[layout](given), "[M_x, K]")
    assert put.dtype == np.dtype("float32" if name == "f32" else agmm.dtypes.DTYPES[agmm.dtypes.NAMES.index(name)])
    np.testing.assert_array_equal(np.ascontiguousarray(put.numpy()).view(bits_of(given).dtype), bits_of(given))
    out = LAYOUTS[layout](torch.zeros_like(given))
    assert client.get("T", out=out) is out
    np.testing.assert_array_equal(bits_of(out), bits_of(given))


REFUSED = {
    "another device": (torch.zeros(4, 6, device="meta"), "the array is on meta; give tensor.cpu()"),
    "a sparse tensor": (torch.eye(4).to_sparse(), "has layout torch.sparse_coo; give .to_dense()"),
    "float64": (torch.zeros(4, 6, dtype=torch.float64), 'dtype float64; pass dtype="f32"'),
    "float8": (torch.zeros(4, 6).to(torch.float8_e4m3fn), "dtype torch.float8_e4m3fn, which NumPy lacks; give a tensor of"),
    "one dimension": (torch.zeros(6), "1 dimensions"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_a_refused_tensor_gets_one_clear_line(client, case):
    tensor, message = REFUSED[case]
    with pytest.raises(agmm.InvalidArgument, match=re.escape(message)) as raised:
        client.put("T", tensor, "[M_x, K]")
    assert "\n" not in str(raised.value)
