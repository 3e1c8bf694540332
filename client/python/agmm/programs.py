"""The programs of the package: the daemon and the command line."""

import os
import pathlib
import shutil
import sys


def find(name: str, skip: str = "") -> str:
    """Returns the path of a program: the package's own, or else the one on PATH. Raises FileNotFoundError.

    skip: a folder on PATH that is not searched.
    """
    own = pathlib.Path(__file__).parent / "bin" / name
    if own.exists():
        return str(own)
    folders = [folder for folder in os.environ.get("PATH", os.defpath).split(os.pathsep) if folder != skip]
    found = shutil.which(name, path=os.pathsep.join(folders))
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
    try:
        # In a package without programs, the console script would find itself.
        path = find(name, skip=os.path.dirname(sys.argv[0]))
    except FileNotFoundError as error:
        sys.exit(f"{name}: {error}")
    os.execv(path, [name, *sys.argv[1:]])
