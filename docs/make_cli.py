#!/usr/bin/env python3
"""Writes the reference of docs/cli.md from agmmctl's own help. The text above the marker is written by hand.

    docs/make_cli.py [--check] BIN_FOLDER     --check: exits with 1 if the file differs from the program's help
"""

import pathlib
import re
import subprocess
import sys

FILE = pathlib.Path(__file__).resolve().parent / "cli.md"
MARKER = "<!-- From here on made by docs/make_cli.py from the program's help. -->\n"


def help_of(agmmctl, path):
    text = subprocess.run(
        [agmmctl, *path, "--help"], capture_output=True, text=True, check=True, env={"COLUMNS": "80"}
    ).stdout
    return text.split("\nExit codes:")[0].rstrip()


def subcommands(text):
    _, found, below = text.partition("\nSubcommands:\n")
    return re.findall(r"^  (\w[\w-]*)", below, re.MULTILINE) if found else []


def sections(agmmctl, path=()):
    text = help_of(agmmctl, path)
    yield f"{'#' * min(2 + len(path), 4)} {' '.join(['agmmctl', *path])}\n\n```text\n{text}\n```\n"
    for name in subcommands(text):
        yield from sections(agmmctl, (*path, name))


def main(arguments):
    check = arguments[:1] == ["--check"]
    folder = pathlib.Path(arguments[-1])
    by_hand, found, _ = FILE.read_text().partition(MARKER)
    if not found:
        sys.exit(f"make_cli.py: {FILE} has lost its marker; put this line back: {MARKER}")
    text = by_hand + MARKER + "\n" + "\n".join(sections(str(folder / "agmmctl")))
    if not check:
        FILE.write_text(text)
    elif FILE.read_text() != text:
        sys.exit("make_cli.py: docs/cli.md is not what agmmctl says; run docs/make_cli.py BIN_FOLDER and commit it")


if __name__ == "__main__":
    main(sys.argv[1:])
