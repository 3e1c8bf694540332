"""The types of elements: f32, bf16 and f16."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np

from . import arguments, errors

# By the number of the library's ElementType.
NAMES = ("f32", "bf16", "f16")
DTYPES: tuple[np.dtype[Any], ...] = (np.dtype(np.float32), np.dtype(ml_dtypes.bfloat16), np.dtype(np.float16))

_BY_NAME = dict(zip(NAMES, DTYPES))


def dtype_of(given: Any) -> np.dtype[Any]:
    """Returns the dtype for "f32", "bf16" or "f16", or for what NumPy takes for the same types."""
    try:
        found = _BY_NAME[given] if isinstance(given, str) and given in _BY_NAME else np.dtype(given)
    except Exception:  # NumPy raises errors of many classes, such as SyntaxError for "f4,,"
        found = None
    if found not in DTYPES:
        raise errors.InvalidArgument(f"dtype {arguments.shown(given)} is not one of f32, bf16 and f16")
    return found


def name_of(dtype: np.dtype[Any]) -> str:
    """Returns "f32", "bf16" or "f16"."""
    return NAMES[DTYPES.index(dtype)]


def number_of(dtype: np.dtype[Any]) -> int:
    """Returns the number of the library's ElementType."""
    return DTYPES.index(dtype)
