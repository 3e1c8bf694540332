"""Checks of arguments before they reach the extension."""

from __future__ import annotations

import operator
import os
import sys
import warnings
from collections.abc import Iterable, Mapping
from typing import Any

import numpy

from . import errors


LONGEST_SOCKET_BYTES = 107  # of the path of a unix socket
_LONGEST_SHOWN = 80


def a_kind(kind: type) -> str:
    """Returns the type's name with its article: "an int"."""
    name = kind.__name__
    return f"an {name}" if name[0] in "aeioAEIO" or name == "ndarray" else f"a {name}"


def shown(value: Any) -> str:
    """Returns the value for an error of one line: as Python writes it, or its type if that is long."""
    written = repr(value)
    return written if len(written) <= _LONGEST_SHOWN and "\n" not in written else a_kind(type(value))


def described(value: Any) -> str:
    """Returns the value and its type for an error: "5, an int"."""
    kind, written = a_kind(type(value)), shown(value)
    return written if written == kind else f"{written}, {kind}"


def text(value: Any, argument: str) -> str:
    """Returns `value`, a str that UTF-8 can express."""
    if not isinstance(value, str):
        raise errors.InvalidArgument(f"{argument} is {described(value)}; give a str")
    if not value.isascii():
        try:
            value.encode()
        except UnicodeEncodeError as error:
            raise errors.InvalidArgument(f"{argument} is {value!r}, which is not valid Unicode: {error.reason}") from None
    return value


def endpoint_of_any_folder(endpoint: str) -> str:
    """Returns the endpoint with an absolute path, if it is a unix socket's and that is not too long."""
    path = endpoint.removeprefix("unix:").removeprefix("//")
    if path == endpoint and not path.startswith(("./", "../")) or os.path.isabs(path):
        return endpoint
    absolute = os.path.join(os.path.realpath(os.path.dirname(path)), os.path.basename(path))  # the socket may be a link
    return f"unix:{absolute}" if len(os.fsencode(absolute)) <= LONGEST_SOCKET_BYTES else endpoint


def name(value: Any, argument: str = "name") -> str:
    """Returns `value`, the name of a tensor that is to be made."""
    if isinstance(value, str) and not value:
        raise errors.InvalidArgument(f'{argument} is ""; give a tensor a name of at least one character')
    return text(value, argument)


def real(value: Any, argument: str) -> float:
    """Returns `value`, a real number."""
    try:
        return float(value)
    except (TypeError, ValueError, OverflowError):
        raise errors.InvalidArgument(f"{argument} is {described(value)}; give a number") from None


def items(value: Any, argument: str, example: str) -> list[tuple[str, Any]]:
    """Returns the keys, each a str, and the values of a mapping."""
    if not isinstance(value, Mapping):
        raise errors.InvalidArgument(f"{argument} is {described(value)}; give a dict, such as {example}")
    return [(text(key, f"a key of {argument}"), each) for key, each in value.items()]


def flag(value: Any, argument: str) -> bool:
    """Returns `value`, True or False."""
    if not isinstance(value, (bool, numpy.bool_)):
        raise errors.InvalidArgument(f"{argument} is {described(value)}; give True or False")
    return bool(value)


def callback(value: Any, argument: str) -> Any:
    """Returns `value`, a callable or None."""
    if value is not None and not callable(value):
        raise errors.InvalidArgument(f"{argument} is {described(value)}; give a function, or None")
    return value


def whole(value: Any, argument: str, bits: int, least: int = 0) -> int:
    """Returns `value`, an integer from `least` to 2^bits - 1."""
    try:
        number = None if isinstance(value, bool) else operator.index(value)
    except TypeError:
        number = None
    if number is None:
        raise errors.InvalidArgument(f"{argument} is {described(value)}; give an int")
    if not least <= number < 2**bits:
        raise errors.InvalidArgument(f"{argument} is {number}; give {least} to 2^{bits} - 1")
    return number


def warn(text: str) -> None:
    """Gives a RuntimeWarning, attributed to the user's calling line."""
    level, frame = 2, sys._getframe(1)
    while frame is not None and str(frame.f_globals.get("__name__")).partition(".")[0] == __package__:
        level, frame = level + 1, frame.f_back
    warnings.warn(text, RuntimeWarning, stacklevel=level)


def ranks(values: Iterable[int]) -> list[int]:
    """Returns the ranks of devices."""
    try:
        return [whole(value, "a rank", 31) for value in values]
    except TypeError:
        raise errors.InvalidArgument(f"ranks is {shown(values)}; give a list of ints") from None


def shape(value: Any) -> tuple[int, int]:
    """Returns rows and columns."""
    try:
        rows, cols = value
    except (TypeError, ValueError):
        raise errors.InvalidArgument(f"shape is {shown(value)}; give (rows, cols)") from None
    return whole(rows, "the number of rows", 63, least=1), whole(cols, "the number of columns", 63, least=1)
