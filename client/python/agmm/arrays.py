"""Arrays as tensors: which arrays are accepted, and how their bytes are read and written.

A matrix in C order is handed to the library as it is. Other layouts, and conversions, go through blocks of about 1 MiB,
without a second copy of the whole.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

import ml_dtypes
import numpy as np

from . import errors
from .arguments import a_kind, described
from .dtypes import DTYPES, dtype_of, name_of

# Fills a view of the contents from byte `offset` on, or reads it.
Block = Callable[[int, memoryview], None]

_BLOCK_BYTES = 1 << 20
_DLPACK_HOST_DEVICES = (1, 3)  # a CPU's memory, and pinned memory


def matrix_of(given: Any, argument: str = "the array") -> np.ndarray[Any, Any]:
    """Returns `given` as a 2-D ndarray, without a copy if it is one, a tensor of torch or jax, or a buffer."""
    if isinstance(given, (str, bytes)):
        raise errors.InvalidArgument(f"{argument} is {described(given)}; give a matrix")
    array = _ndarray_of(given, argument)
    if array.dtype.hasobject and array.ndim == 0:
        raise errors.InvalidArgument(f"{argument} is {a_kind(type(given))}, not an array of numbers; give a matrix")
    if array.dtype.hasobject:
        raise errors.InvalidArgument(
            f"{argument} has dtype {array.dtype}; give numbers, such as numpy.asarray(array, numpy.float32)")
    if array.ndim != 2:
        hint = f".reshape(1, {array.size}) or .reshape({array.size}, 1)" if array.ndim == 1 else ".reshape(rows, cols)"
        raise errors.InvalidArgument(
            f"{argument} has {array.ndim} dimensions, shape {array.shape}; give a matrix, such as array{hint}")
    if array.size == 0:
        raise errors.InvalidArgument(f"{argument} has shape {array.shape}; give at least one row and one column")
    return array


def dtype_for(array: np.ndarray[Any, Any], dtype: Any, argument: str = "the array") -> np.dtype[Any]:
    """Returns the dtype of the tensor: `dtype`, or the array's own if it is None."""
    wanted = None if dtype is None else dtype_of(dtype)
    if not np.can_cast(array.dtype, np.float64, "same_kind"):
        raise errors.InvalidArgument(
            f"{argument} has dtype {array.dtype}, which cannot become {name_of(wanted or DTYPES[0])}; give real numbers")
    if wanted is not None:
        return wanted
    own = array.dtype.newbyteorder("=")
    if own not in DTYPES:
        raise errors.InvalidArgument(
            f"{argument} has dtype {array.dtype}; pass dtype=\"f32\" (or \"bf16\", \"f16\") to convert it, or give an array of "
            "float32, float16 or ml_dtypes.bfloat16")
    return own


def is_plain(array: np.ndarray[Any, Any], dtype: np.dtype[Any]) -> bool:
    """Tells if the array's memory has the bytes of the contents: C order, no conversion."""
    return array.dtype == dtype and array.flags.c_contiguous


def reader_of(array: np.ndarray[Any, Any], dtype: np.dtype[Any], on_overflow: Callable[[str, int], None]) -> Block:
    """Returns a function that fills blocks of the contents from `array`, and calls `on_overflow` for a value that becomes
    infinite."""

    def fill(offset_bytes: int, view: memoryview) -> None:
        first = _first_element(array, dtype, offset_bytes, view)
        with np.errstate(over="call", call=on_overflow, invalid="ignore", under="ignore"):
            _copy_block(np.frombuffer(view, dtype), array, first, into_array=False)

    return fill


def writer_of(array: np.ndarray[Any, Any], dtype: np.dtype[Any]) -> Block:
    """Returns a function that writes blocks of the contents to `array`."""

    def take(offset_bytes: int, view: memoryview) -> None:
        first = _first_element(array, dtype, offset_bytes, view)
        _copy_block(np.frombuffer(view, dtype), array, first, into_array=True)

    return take


def copy_rounded(target: np.ndarray[Any, Any], source: np.ndarray[Any, Any], on_overflow: Callable[[str, int], None]) -> None:
    """Copies a matrix. Converts its elements, each rounded once, and calls `on_overflow` for a value that becomes infinite."""
    step = max(1, _BLOCK_BYTES // (source.itemsize * max(1, source.shape[1])))  # rows
    with np.errstate(over="call", call=on_overflow, invalid="ignore", under="ignore"):
        for row in range(0, len(source), step):
            _copy_into(target[row:row + step], source[row:row + step])


def check_out(out: Any, shape: tuple[int, int], dtype: np.dtype[Any]) -> np.ndarray[Any, Any]:
    """Returns `out` as an ndarray that can take the contents of a tensor."""
    array = matrix_of(out, "out")
    if array.shape != shape or array.dtype != dtype:
        raise errors.InvalidArgument(
            f"out has shape {array.shape} and dtype {array.dtype}; the tensor has {shape} and {dtype}, so give "
            f"numpy.empty({shape}, {dtype.name!r})")
    if not array.flags.writeable:
        raise errors.InvalidArgument("out is read-only; give an array that can be written")
    reach_bytes = array.itemsize
    for stride_bytes, count in sorted((abs(stride), count) for stride, count in zip(array.strides, shape) if count > 1):
        if stride_bytes < reach_bytes:
            raise errors.InvalidArgument(f"out has strides {array.strides}, so its elements overlap; give numpy.empty({shape}, "
                                         f"{dtype.name!r})")
        reach_bytes += stride_bytes * (count - 1)
    if not isinstance(out, np.ndarray) and not np.shares_memory(array, _ndarray_of(out, "out")):
        raise errors.InvalidArgument(f"out is {a_kind(type(out))}, which shares no memory; give a numpy.ndarray")
    return array


def _first_element(array: np.ndarray[Any, Any], dtype: np.dtype[Any], offset_bytes: int, view: memoryview) -> int:
    """Returns the number of the block's first element."""
    size_bytes = array.size * dtype.itemsize
    if offset_bytes < 0 or offset_bytes + view.nbytes > size_bytes or offset_bytes % dtype.itemsize or view.nbytes % dtype.itemsize:
        raise errors.FailedPrecondition(f"bytes {offset_bytes} to {offset_bytes + view.nbytes} are not elements of an array of "
                                        f"{size_bytes} bytes; if another client has replaced the tensor, repeat the call")
    return offset_bytes // dtype.itemsize


def _copy_block(block: np.ndarray[Any, Any], array: np.ndarray[Any, Any], first: int, into_array: bool) -> None:
    """Copies elements [first, first + block.size) of the array, counted in C order, from or to a flat block."""
    cols = array.shape[1]
    done = 0
    while done < block.size:
        row, col = divmod(first + done, cols)
        rows = (block.size - done) // cols if col == 0 else 0
        if rows > 0:
            piece, part = array[row:row + rows], block[done:done + rows * cols].reshape(rows, cols)
        else:
            piece = array[row, col:col + block.size - done]
            part = block[done:done + piece.size]
        if into_array:
            np.copyto(piece, part)
        else:
            _copy_into(part, piece)
        done += part.size


def _copy_into(part: np.ndarray[Any, Any], piece: np.ndarray[Any, Any]) -> None:
    """Copies and rounds. To be called in a numpy.errstate with over="call"."""
    # NumPy makes bf16, and float16 of a longdouble, by way of float32.
    widest_bytes = {ml_dtypes.bfloat16: 2, np.float16: 8}.get(part.dtype.type, piece.itemsize)
    rounds_twice = piece.dtype.kind in "iuf" and piece.itemsize > widest_bytes
    np.copyto(part, _rounded_to_odd(piece) if rounds_twice else piece, casting="unsafe")
    narrows = part.dtype != piece.dtype and part.dtype != np.float32
    if narrows and ml_dtypes.bfloat16 in (part.dtype, piece.dtype):  # NumPy does not see that these overflow
        infinite = np.isinf(part)
        if infinite.any() and np.isfinite(piece[infinite]).any():
            np.geterrcall()("overflow", 0)


def _rounded_to_odd(values: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """Returns float32 values that round to bf16 and f16 as `values` would. Rounding to nearest here would round twice."""
    wide = values if values.dtype.kind == "f" else values.astype(np.longdouble)
    nearest = wide.astype(np.float32)
    bits = nearest.view(np.uint32)
    exact = (nearest == wide) | np.isnan(nearest)
    bits -= np.abs(nearest) > np.abs(wide)  # towards zero
    bits |= ~exact
    return nearest


def _ndarray_of(given: Any, argument: str) -> np.ndarray[Any, Any]:
    if isinstance(given, np.ma.MaskedArray):
        raise errors.InvalidArgument(f"{argument} is a masked array; give array.filled(value)")
    if isinstance(given, np.ndarray):
        return given.view(np.ndarray)
    torch = sys.modules.get("torch")
    if torch is not None and isinstance(given, torch.Tensor):
        return _from_torch(torch, given, argument)
    if isinstance(given, (list, tuple)) and any(isinstance(each, np.ma.MaskedArray) for each in given):
        raise errors.InvalidArgument(f"{argument} is a list of masked arrays; give numpy.ma.stack(rows).filled(value)")
    if isinstance(given, (list, tuple)):  # numpy.asarray would read mapped arrays among them without their guard
        given = [each.view(np.ndarray) if type(each) is not np.ndarray and isinstance(each, np.ndarray) else each for each in given]
    device = _dlpack_device_of(given)
    if device is not None and device[0] not in _DLPACK_HOST_DEVICES:
        raise errors.InvalidArgument(f"{argument} is on DLPack's device {device}; copy it to host memory, which agmm reads")
    try:
        return np.from_dlpack(given) if device is not None and not hasattr(given, "__array__") else np.asarray(given)
    except (TypeError, ValueError, BufferError, RuntimeError) as error:
        raise errors.InvalidArgument(f"{argument} is {a_kind(type(given))}, which is not an array: {error}") from None


def _dlpack_device_of(given: Any) -> tuple[Any, ...] | None:
    """Returns None for an object that DLPack does not export, such as a jax array that is spread over devices."""
    try:
        return tuple(given.__dlpack_device__()) if hasattr(given, "__dlpack_device__") else None
    except (TypeError, ValueError, BufferError, RuntimeError):
        return None


def _from_torch(torch: Any, tensor: Any, argument: str) -> np.ndarray[Any, Any]:
    if tensor.device.type != "cpu":
        raise errors.InvalidArgument(f"{argument} is on {tensor.device}; give tensor.cpu(), because agmm reads host memory")
    if tensor.layout is not torch.strided:
        raise errors.InvalidArgument(f"{argument} has layout {tensor.layout}; give .to_dense()")
    plain = tensor.detach().resolve_conj().resolve_neg()
    try:
        if plain.dtype is torch.bfloat16:
            return plain.view(torch.int16).numpy().view(ml_dtypes.bfloat16)
        return plain.numpy()
    except TypeError as error:
        raise errors.InvalidArgument(
            f"{argument} has dtype {plain.dtype}, which NumPy lacks; give a tensor of torch.float32: {error}") from None
    except RuntimeError as error:
        raise errors.InvalidArgument(f"{argument} cannot become an array of NumPy: {error}") from None
