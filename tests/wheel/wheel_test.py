"""A wheel of deploy/wheel.sh, as a user installs it: in an empty virtual environment, without a network.

    /opt/agmm/python/bin/python wheel_test.py --dist FOLDER --prefix PREFIX --wheels FOLDER --version VERSION

The first folder contains the wheel, and the second one the wheels of the packages that it needs. agmm is installed in
PREFIX, for the build from source.
"""

import argparse
import os
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile
import time
import unittest
import zipfile

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
LIMIT_MIB = 60
DEADLINE_S = 120
BUILD_DEADLINE_S = 500  # for the extension, without a compiler cache

PIP_INSTALL = ("-m", "pip", "--disable-pip-version-check", "install", "-q", "--no-index")

# A part of every Linux of the wheel's age, or of Python.
SYSTEM = re.compile(r"(linux-vdso|ld-linux.*|libc|libm|libdl|libpthread|librt|libresolv|libutil|libgcc_s|libstdc\+\+|libz)\.so")

# A product of the user's own arrays, checked against float64: |C - C64| <= K 2^-23 |A||B|.
PRODUCT = """
import numpy as np
import agmm
rng = np.random.default_rng()
a = rng.standard_normal((301, 513), dtype=np.float32)
b = rng.standard_normal((513, 257), dtype=np.float32)
with agmm.local(devices=4) as client:
    c = agmm.matmul(a, b, client=client)
a, b = a.astype(np.float64), b.astype(np.float64)
assert c.shape == (301, 257) and c.dtype == np.float32, (c.shape, c.dtype)
assert (np.abs(c - a @ b) <= 513 * 2.0**-23 * (np.abs(a) @ np.abs(b))).all()
print("C is right")
"""


def run(*command, timeout=DEADLINE_S, **options):
    """Returns what a command has written. Fails if it fails."""
    done = subprocess.run([str(each) for each in command], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
                          timeout=timeout, stdin=subprocess.DEVNULL, **options)
    if done.returncode != 0:
        raise AssertionError(f"{' '.join(map(str, command))} ended with {done.returncode}:\n{done.stdout}")
    return done.stdout


class Wheel(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.folder = pathlib.Path(tempfile.mkdtemp(prefix="agmm-wheel-"))
        cls.addClassCleanup(shutil.rmtree, cls.folder)
        (cls.wheel,) = OPTIONS.dist.glob("*.whl")
        cls.environment = cls.folder / "environment"
        begin_s = time.monotonic()
        run(sys.executable, "-m", "venv", cls.environment)
        cls.python = cls.environment / "bin/python"
        run(cls.python, *PIP_INSTALL, "--find-links", OPTIONS.wheels, cls.wheel)
        cls.install_s = time.monotonic() - begin_s
        (cls.packages,) = cls.environment.glob("lib/python3*/site-packages")

    def elf_files(self):
        """All programs and libraries that the wheel has installed."""
        files = [path for part in ("agmm", "agmm.libs") for path in (self.packages / part).rglob("*") if path.is_file()]
        return [path for path in files if path.read_bytes()[:4] == b"\x7fELF"]

    def test_a_product_is_right(self):
        begin_s = time.monotonic()
        self.assertEqual(run(self.python, "-c", PRODUCT, cwd=self.folder), "C is right\n")
        taken_s = self.install_s + time.monotonic() - begin_s
        print(f"from an empty environment to a checked product: {taken_s:.1f} s")

    def test_the_programs_are_commands(self):
        for program in ("agmmd", "agmmctl"):
            self.assertRegex(run(self.environment / "bin" / program, "--version"), rf"^{program} {OPTIONS.version}\b")

    def test_the_name_says_what_it_runs_on(self):
        self.assertRegex(self.wheel.name, rf"^agmm-{OPTIONS.version}-cp310-abi3-manylinux_2_\d+_\w+\.whl$")

    def test_the_metadata_is_complete(self):
        with zipfile.ZipFile(self.wheel) as archive:
            metadata = archive.read(f"agmm-{OPTIONS.version}.dist-info/METADATA").decode()
        for line in (f"Version: {OPTIONS.version}", "Requires-Python: >=3.10", "Requires-Dist: numpy>=", "Requires-Dist: ml_dtypes>="):
            self.assertRegex(metadata, rf"(?m)^{re.escape(line)}")

    def test_the_size_is_bounded(self):
        self.assertLess(self.wheel.stat().st_size >> 20, LIMIT_MIB)

    def test_libraries_come_from_the_wheel_or_the_system(self):
        files = self.elf_files()
        self.assertGreater(len(files), 20)
        for name, place in set(re.findall(r"^\s*(\S+) => (.*?)(?: \(0x\w+\))?$", run("ldd", *files), re.MULTILINE)):
            if not pathlib.Path(place).resolve().is_relative_to(self.packages.resolve()):
                self.assertRegex(name, SYSTEM, f"is at {place}")

    def test_files_name_no_folder_of_the_build(self):
        for file in self.elf_files():
            for path in re.findall(r"R(?:UN)?PATH\).*\[(.*)\]", run("readelf", "-d", file)):
                for folder in path.split(":"):
                    self.assertTrue(folder.startswith("$ORIGIN"), f"{file.name} looks for libraries in {folder}")

    @unittest.skipUnless(os.geteuid() == 0, "changing the root folder needs root")
    def test_a_root_folder_with_python_alone_is_enough(self):
        """Besides the libraries of SYSTEM and those of Python's program."""
        root = self.folder / "root"
        python = os.path.realpath(sys.executable)
        mounts = {"/proc": "proc", "/dev": "dev", os.path.dirname(os.__file__): os.path.dirname(os.__file__)[1:],
                  self.packages: "site"}
        for place in (*mounts.values(), "tmp"):
            (root / place).mkdir(parents=True)
        of_python, of_wheel = (re.findall(r"(/\S+) \(0x", run("ldd", *files)) for files in ([python], self.elf_files()))
        for file in {python, *of_python, *(file for file in of_wheel if SYSTEM.match(pathlib.Path(file).name))}:
            (root / file[1:]).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(file, root / file[1:])
        # The mounts end with the process.
        script = "".join(f"mount --rbind '{source}' '{root / place}'\n" for source, place in mounts.items())
        script += f"exec env -i PYTHONPATH=/site {shutil.which('chroot')} '{root}' {python} -c \"$0\""
        plan = "import agmm.programs, subprocess\n" \
            "subprocess.run([agmm.programs.find('agmmctl'), 'plan', '--shape', 'M=64,N=64,K=64', '--mesh', 'x=4'], check=True)\n"
        output = run("unshare", "--mount", "sh", "-euc", script, PRODUCT + plan)
        self.assertIn("C is right", output)
        self.assertIn("verified", output)

    def test_a_build_from_source_uses_an_installed_agmm(self):
        build = (sys.executable, *PIP_INSTALL, "--no-build-isolation", "--no-deps", "--target", self.folder / "built", ROOT / "client/python")
        environment = {"CMAKE_CXX_COMPILER_LAUNCHER": "ccache"} if shutil.which("ccache") else {}
        environment |= {name: os.environ[name] for name in os.environ if name.startswith("CCACHE_") or name == "PATH"}
        with self.assertRaisesRegex(AssertionError, "no agmm .* is installed here"):
            run(*build, env=environment)
        run(*build, env={**environment, "CMAKE_PREFIX_PATH": str(OPTIONS.prefix)}, timeout=BUILD_DEADLINE_S)
        scripts = self.folder / "built/bin"
        installed = {**environment, "PYTHONPATH": str(self.folder / "built"), "PATH": f"{scripts}:{environment['PATH']}"}
        with self.assertRaisesRegex(AssertionError, "agmmctl: agmmctl is neither in .* nor on PATH"):
            run("agmmctl", "--version", env=installed)
        installed["PATH"] += f":{OPTIONS.prefix}/bin"
        self.assertRegex(run("agmmctl", "--version", env=installed), rf"^agmmctl {OPTIONS.version}\b")
        self.assertEqual(run(self.python, "-c", PRODUCT, env=installed, cwd=self.folder), "C is right\n")


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    for name in ("dist", "prefix", "wheels"):
        parser.add_argument(f"--{name}", type=lambda path: pathlib.Path(path).resolve(), required=True)
    parser.add_argument("--version", required=True)
    OPTIONS, rest = parser.parse_known_args()
    unittest.main(argv=[sys.argv[0], *rest])
