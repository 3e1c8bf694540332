"""The programs of the package: the daemon and the command line."""

import os
import pathlib
import shutil
import sys


def find(name: str) -> str:
    """Returns the path of a program: the package's own, or else the one on PATH. Raises FileNotFoundError."""
    own = pathlib.Path(__file__).parent / "bin" / name
    if own.exists():
        return str(own)
    found = shutil.which(name)
    if found is None:
        raise FileNotFoundError(f"{name} is neither in {own.parent} nor on PATH; install a wheel of agmm, which brings it")
    return found


def agmmctl() -> None:
    """Becomes agmmctl. The console script of a wheel calls this."""
    _become("agmmctl")


def agmmd() -> None:
    """Becomes agmmd. The console script of a wheel calls this."""
    _become("agmmd")


def _become(name: str) -> None:
    path = find(name)
    os.execv(path, [name, *sys.argv[1:]])
