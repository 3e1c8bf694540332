"""Compares the registers, spills and stack of kernels/cuda/sm90 with the table in its NOTES.md.

    registers_test.py NOTES.md product.ptxas
"""

import re
import sys


def reported(text):
    """(registers, spills, stack) by kernel, from the output of nvcc --ptxas-options=-v."""
    found = {}
    for part in text.split("Compiling entry function '")[1:]:
        name = part[:part.index("'")]
        stack, stores, loads = map(int, re.search(
            r"(\d+) bytes stack frame, (\d+) bytes spill stores, (\d+) bytes spill loads", part).groups())
        found[name] = (int(re.search(r"Used (\d+) registers", part).group(1)), stores + loads, stack)
    return found


def stated(text):
    rows = re.findall(r"^\| `(agmm_\w+)` \| (\d+) \| (\d+) \| (\d+) \|$", text, re.MULTILINE)
    return {name: tuple(map(int, values)) for name, *values in rows}


def main():
    notes, report = sys.argv[1:]
    with open(notes, encoding="utf-8") as file:
        expected = stated(file.read())
    with open(report, encoding="utf-8") as file:
        actual = reported(file.read())
    if not actual:
        sys.exit(f"{report} names no kernel")
    wrong = [f"{name}: NOTES.md says {expected.get(name, 'nothing')}, ptxas says {actual.get(name, 'nothing')}"
             for name in sorted(expected.keys() | actual.keys()) if expected.get(name) != actual.get(name)]
    if wrong:
        sys.exit("(registers, spilled bytes, stack bytes)\n" + "\n".join(wrong))


if __name__ == "__main__":
    main()
