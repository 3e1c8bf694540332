"""Timeouts: seconds in Python, milliseconds in the extension."""

from __future__ import annotations

import numbers

from . import arguments, errors

_LONGEST_S = 10.0 * 365 * 86400  # the library shortens it to a year


def to_ms(seconds: float | None, name: str = "timeout") -> int:
    """Returns whole milliseconds, at least 1; 0, which stands for the client's timeout, for None."""
    if seconds is None:
        return 0
    if not isinstance(seconds, numbers.Real) or isinstance(seconds, bool):
        raise errors.InvalidArgument(f"{name} is {arguments.described(seconds)}; give seconds, or None for the default")
    if not seconds > 0:
        raise errors.InvalidArgument(f"{name} is {seconds} s; give more than 0 s, or None for the default")
    return max(1, round(min(seconds, _LONGEST_S) * 1000))
