"""The name by which people recognize this program in a list of sessions."""

from __future__ import annotations

import os
import sys

_MAX_BYTES = 64  # that a client of the library takes


def default() -> str:
    """Returns the script's name ("train.py"), that of the notebook or of the package that runs, or else "python"."""
    path = (getattr(sys, "argv", None) or [""])[0]
    name = os.path.basename(path)
    if name == "ipykernel_launcher.py":
        name = os.path.basename(os.environ.get("JPY_SESSION_NAME", "")) or "notebook"
    elif name == "__main__.py":  # python -m package
        name = os.path.basename(os.path.dirname(path))
    if name in ("", "-", "-c", "-m"):
        name = "python"
    shown = "".join(letter if letter.isprintable() else "?" for letter in name)
    return shown.encode()[:_MAX_BYTES].decode(errors="ignore")
