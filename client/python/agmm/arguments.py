"""Checks of arguments before they reach the extension."""

from __future__ import annotations

import operator
from collections.abc import Sequence
from typing import Any

from . import errors


def text(value: Any, argument: str) -> str:
    """Returns `value`, a str that UTF-8 can express."""
    if not isinstance(value, str):
        raise errors.InvalidArgument(f"{argument} is {value!r}, a {type(value).__name__}; give a str")
    if not value.isascii():
        try:
            value.encode()
        except UnicodeEncodeError as error:
            raise errors.InvalidArgument(f"{argument} is {value!r}, which is not valid Unicode: {error.reason}") from None
    return value


def whole(value: Any, argument: str, bits: int, least: int = 0) -> int:
    """Returns `value`, an integer from `least` to 2^bits - 1."""
    try:
        number = operator.index(value)
    except TypeError:
        raise errors.InvalidArgument(f"{argument} is {value!r}, a {type(value).__name__}; give an int") from None
    if not least <= number < 2**bits:
        raise errors.InvalidArgument(f"{argument} is {number}; give {least} to 2^{bits} - 1")
    return number


def ranks(values: Sequence[int]) -> list[int]:
    """Returns the ranks of devices."""
    try:
        return [whole(value, "a rank", 31) for value in values]
    except TypeError:
        raise errors.InvalidArgument(f"ranks is {values!r}; give a list of ints") from None


def shape(value: Any) -> tuple[int, int]:
    """Returns rows and columns."""
    try:
        rows, cols = value
    except (TypeError, ValueError):
        raise errors.InvalidArgument(f"shape is {value!r}; give (rows, cols)") from None
    return whole(rows, "the number of rows", 63), whole(cols, "the number of columns", 63)
