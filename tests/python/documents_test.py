"""Runs the Python that the documents show.

The ```python blocks of a document run in order and share their names, as if a reader typed them into one session. A block
that begins with ```python torch needs torch. tests/docs runs README.md's, in the environment that its own commands create.
"""

import importlib.util
import pathlib
import re
import subprocess
import sys

import pytest

ROOT = pathlib.Path(__file__).resolve().parents[2]
DOCUMENTS = [path for path in sorted((ROOT / "docs").glob("*.md")) if "```python" in path.read_text()]
DEADLINE_S = 120


def blocks(text: str) -> list[tuple[str, str]]:
    """Returns (what the block needs, its code) for each ```python block."""
    return re.findall(r"^```python *(.*?)\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)


def test_there_are_blocks() -> None:
    assert [path.name for path in DOCUMENTS] == ["python.md"]
    assert len(blocks((ROOT / "docs/python.md").read_text())) >= 8


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: path.stem)
def test_the_blocks_run(document: pathlib.Path, tmp_path: pathlib.Path) -> None:
    code = [body for need, body in blocks(document.read_text()) if not need or importlib.util.find_spec(need)]
    script = tmp_path / "typed.py"
    script.write_text("\n".join(code))
    done = subprocess.run([sys.executable, str(script)], cwd=tmp_path, capture_output=True, text=True, timeout=DEADLINE_S)
    assert done.returncode == 0, done.stderr
