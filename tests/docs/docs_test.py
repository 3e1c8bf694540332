"""Runs what the documents tell people to type, and compiles the C++ they show.

    docs_test.py BIN_FOLDER [WHEEL_FOLDER PIP_FOLDER]

The ```sh blocks of README.md, CONTRIBUTING.md and docs/*.md run in one shell for each document, in a network and mount
namespace of its own and in a folder that looks like the repository. If they run pip, the document's ```python blocks run
after them, in one process, and in a virtual environment that contains only what pip has installed: the wheel from
WHEEL_FOLDER, which is called dist there, and its dependencies from PIP_FOLDER. Without these two arguments, neither pip nor
Python runs. tests/python runs the ```python and ```sh private blocks of all other documents. Commands that are too long
for a test, or that another test runs, are named in ELSEWHERE.
"""

import os
import pathlib
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import unittest

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
DOCUMENTS = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").glob("*.md"))]
DEADLINE_S = 280
PIP = "pip install "
PYTHON_SCRIPT = "blocks.py"

# Command -> what runs it: a file of the repository that contains the given words, or "by hand".
ELSEWHERE = {
    "deploy/install-deps.sh": ("tests/run.sh", "deploy/install-deps.sh"),
    "tests/run.sh": (".ci/run", "tests/run.sh"),
    "cmake -S . -B build-test -G Ninja -DAGMM_BUILD_TESTS=ON -DAGMM_FAILPOINTS=ON": ("tests/run.sh", "-DAGMM_FAILPOINTS=ON"),
    "cmake --build build-test": ("tests/run.sh", "cmake --build"),
    "ctest --test-dir build-test -R Verify": ("tests/run.sh", "ctest --test-dir"),
    "cmake -S . -B build -G Ninja && cmake --build build": ("deploy/demo.sh", "cmake --build"),
    'cmake --install build --prefix "$PREFIX"': ("tests/e2e/cli/installed_test.cc", "--install"),
    "PREFIX=$HOME/agmm": ("tests/e2e/cli/installed_test.cc", "--prefix"),
    'cmake -S client/examples -B /tmp/agmm-examples -DCMAKE_PREFIX_PATH="$PREFIX"': ("tests/e2e/cli/installed_test.cc", "CMAKE_PREFIX_PATH"),
    "cmake --build /tmp/agmm-examples": ("tests/e2e/cli/installed_test.cc", "--build"),
    '"$PREFIX/bin/agmmd" 2>agmmd.log &': ("tests/e2e/cli/installed_test.cc", "bin/agmmd"),
    "/tmp/agmm-examples/one_product": ("tests/e2e/cli/installed_test.cc", "one_product"),
    "deploy/wheel.sh build dist": ("tests/wheel/CMakeLists.txt", "deploy/wheel.sh"),
    "tests/bench/run.sh --quick": ("by hand", "root, minutes, and a quiet machine"),
}


def blocks(text, language):
    return re.findall(rf"^```{language}\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)


def help_of(*verbs):
    return subprocess.run([BIN / "agmmctl", *verbs, "--help"], capture_output=True, text=True, check=True).stdout


def without_comment(line):
    """Comments in these documents follow at least two spaces."""
    return re.sub(r"\s{2,}#.*$", "", line).rstrip()


def script_of(document):
    """The commands of a document that run here."""
    lines = []
    for block in blocks(document.read_text(), "sh"):
        lines += [line for line in map(without_comment, block.splitlines()) if line not in ELSEWHERE]
    if WHEELS is None:
        lines = [line for line in lines if not line.startswith(PIP)]
    elif any(line.startswith(PIP) for line in lines):
        lines.append(f"python {PYTHON_SCRIPT}")
    return "\n".join(lines).strip()


class Documents(unittest.TestCase):
    def setUp(self):
        self.folder = pathlib.Path(tempfile.mkdtemp(prefix="agmm-docs-"))
        self.addCleanup(shutil.rmtree, self.folder)
        for entry in ROOT.iterdir():
            if not entry.name.startswith((".", "build")):
                (self.folder / entry.name).symlink_to(entry)

    def environment_of_python(self, document):
        """Prepares the run of a document's pip and Python, and returns the environment variables for them."""
        (self.folder / "dist").symlink_to(WHEELS[0])
        (self.folder / PYTHON_SCRIPT).write_text("\n".join(blocks(document.read_text(), "python")))
        subprocess.run(["/usr/bin/python3", "-m", "venv", self.folder / "venv"], check=True, stdin=subprocess.DEVNULL)
        return {
            "PATH": f"{BIN}:{self.folder}/venv/bin:{os.environ['PATH']}",
            "PIP_NO_INDEX": "1",
            "PIP_FIND_LINKS": str(WHEELS[1]),
            "PIP_DISABLE_PIP_VERSION_CHECK": "1",
        }

    def run_script(self, script, environment):
        (self.folder / "script").write_text(script + "\n")
        inside = "mount -t tmpfs none /run && ip link set lo up && exec bash -euo pipefail script"
        environment = {
            "PATH": f"{BIN}:{os.environ['PATH']}",
            "HOME": str(self.folder),
            "AGMM_BIN": str(BIN),
            "TMPDIR": str(self.folder),
            "LC_ALL": "C.UTF-8",
            **environment,
        }
        process = subprocess.Popen(
            ["unshare", "-r", "-n", "-m", "--pid", "--fork", "--kill-child", "sh", "-c", inside],
            cwd=self.folder,
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,
        )
        try:
            output, _ = process.communicate(timeout=DEADLINE_S)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            output, _ = process.communicate()
            self.fail(f"not done after {DEADLINE_S} s:\n{output}")
        self.assertEqual(process.returncode, 0, f"{script}\n---\n{output}")

    def test_there_are_documents(self):
        self.assertGreater(len(DOCUMENTS), 5)

    def test_commands_that_run_elsewhere_exist_there(self):
        text = "\n".join(document.read_text() for document in DOCUMENTS)
        for command, (file, words) in ELSEWHERE.items():
            self.assertIn(command, text, "no document has this command any more; remove it from ELSEWHERE")
            if file != "by hand":
                self.assertIn(words, (ROOT / file).read_text(), f"{file} does not run: {command}")

    def test_links_lead_to_files(self):
        for document in DOCUMENTS:
            for target in re.findall(r"\]\(([^)#:]+)\)", document.read_text()):
                self.assertTrue((document.parent / target).exists(), f"{document.name}: {target}")

    def test_the_reference_of_agmmctl_is_current(self):
        done = subprocess.run(
            [sys.executable, str(ROOT / "docs/make_cli.py"), "--check", str(BIN)], capture_output=True, text=True
        )
        self.assertEqual(done.returncode, 0, done.stderr)

    def test_help_keeps_its_columns(self):
        shapes = {
            "Positionals:": r"  \S| {22}\S",
            "Options:": r"  \S| {22}\S",
            "Subcommands:": r"  \S| {22}\S",
            "Algorithms:": r"  (?=.{20}\S)\w+ +\S|A rank|the same",
            "Exit codes:": r"  (?=.{5}\S)\d+ +\S| {7}\S|If ",
        }

        def check(path):
            text = help_of(*path)
            shape = r"\S"
            for line in text.splitlines():
                if line in shapes:
                    shape = shapes[line]
                elif not line:
                    shape = r"\S"
                else:
                    self.assertRegex(line, f"^({shape})", " ".join(path))
                self.assertLessEqual(len(line), 80, line)
            _, _, below = text.partition("\nSubcommands:\n")
            for name in re.findall(r"^  (\w+) ", below.partition("\n\n")[0], re.MULTILINE):
                check((*path, name))

        check(())

    def test_the_help_of_plan_explains_each_algorithm(self):
        text = help_of("plan")
        names = re.search(r"How shards travel: (.*?);", " ".join(text.split()))[1]
        for name in re.findall(r"\w+_?\w*", names.replace("(unfused)", "").replace(" or ", " ")):
            self.assertRegex(text, rf"(?m)^  {name} +[A-Z]")

    def test_code_compiles(self):
        (self.folder / "include").mkdir()
        (self.folder / "include/agmm").symlink_to(ROOT / "client")
        count = 0
        for document in DOCUMENTS:
            for code in blocks(document.read_text(), "cpp"):
                count += 1
                source = self.folder / f"{document.stem}{count}.cc"
                source.write_text(code)
                done = subprocess.run(
                    ["c++", "-std=c++20", "-fsyntax-only", "-Wall", "-Wextra", "-Werror", f"-I{self.folder}/include", source],
                    capture_output=True,
                    text=True,
                )
                self.assertEqual(done.returncode, 0, f"{document.name}:\n{done.stderr}")
        self.assertGreaterEqual(count, 2)


def add_test(document):
    def test(self):
        script = script_of(document)
        if script:
            uses_pip = re.search(rf"^{PIP}", script, re.MULTILINE)
            self.run_script(script, self.environment_of_python(document) if uses_pip else {})

    name = re.sub(r"\W", "_", document.stem.lower())
    setattr(Documents, f"test_commands_of_{name}", test)


for each in DOCUMENTS:
    add_test(each)

if __name__ == "__main__":
    BIN = pathlib.Path(sys.argv.pop(1)).resolve()
    WHEELS = None
    if len(sys.argv) > 2:
        WHEELS = [pathlib.Path(sys.argv.pop(1)).resolve() for _ in range(2)]
    unittest.main()
