"""Runs the Python that the documents show.

The ```python blocks of a document run in order and share their names, as if a reader typed them into one session. A block
that begins with ```python torch needs torch. A block that begins with ```sh private has commands for a private daemon that
has had a job. tests/docs runs all other commands, and README.md's Python, in the environment that its commands create.
"""

import concurrent.futures
import importlib.util
import os
import pathlib
import re
import subprocess
import sys

import agmm
import numpy as np
import pytest
from agmm import programs
from support import A, B, PATIENCE_S, SPEC

ROOT = pathlib.Path(__file__).resolve().parents[2]
DOCUMENTS = [*(path for path in sorted((ROOT / "docs").glob("*.md")) if "```python" in path.read_text()),
             ROOT / "client/python/README.md"]
DEADLINE_S = 120


def blocks(text: str, language: str = "python") -> list[tuple[str, str]]:
    """Returns (what the block needs, its code) for each block of the language."""
    return re.findall(rf"^```{language} *(.*?)\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)


def test_there_are_blocks() -> None:
    assert [path.name for path in DOCUMENTS] == ["python.md", "README.md"]
    assert len(blocks((ROOT / "docs/python.md").read_text())) >= 8


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: path.stem)
def test_the_blocks_run(document: pathlib.Path, tmp_path: pathlib.Path) -> None:
    code = [body for need, body in blocks(document.read_text()) if not need or importlib.util.find_spec(need)]
    script = tmp_path / "typed.py"
    script.write_text("\n".join(code))
    done = subprocess.run([sys.executable, str(script)], cwd=tmp_path, capture_output=True, text=True, timeout=DEADLINE_S)
    assert done.returncode == 0, done.stderr


def test_programs_that_run_the_loop_of_mappings_do_not_stop_each_other() -> None:
    (body,) = [body for _, body in blocks((ROOT / "docs/python.md").read_text()) if ".renew()" in body]
    before, loop = body.split("with client.map(", 1)
    with agmm.local(devices=2, heap="16MiB", threads=1) as local, agmm.connect(local.endpoint) as first:
        names = {"a": np.ones((256, 256), np.float32), "client": first}
        exec(before, names)

        def run(_: int) -> None:
            with agmm.connect(local.endpoint, call_timeout=PATIENCE_S, transfer_timeout=PATIENCE_S) as client:
                for _ in range(10):
                    exec("with client.map(" + loop, names | {"client": client})

        with concurrent.futures.ThreadPoolExecutor(2) as pool:
            assert list(pool.map(run, range(2))) == [None, None]


def test_the_commands_for_a_private_daemon_run(tmp_path: pathlib.Path) -> None:
    text = (ROOT / "docs/python.md").read_text()
    commands = [body for need, body in blocks(text, "sh") if need == "private"]
    assert commands
    path = f"{pathlib.Path(programs.find('agmmctl')).parent}{os.pathsep}{os.environ['PATH']}"
    daemon = agmm.local(devices=4)
    try:
        daemon.start().matmul(SPEC, A, B)
        environment = os.environ | {"AGMM_ENDPOINT": daemon.endpoint, "PATH": path}
        done = subprocess.run(["sh", "-e", "-c", "\n".join(commands)], cwd=tmp_path, env=environment, capture_output=True,
                              text=True, timeout=DEADLINE_S)
        assert done.returncode == 0, done.stderr
    finally:
        daemon.close()
