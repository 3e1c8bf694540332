#!/usr/bin/env python3
"""version_test.py: checks what kernels/base/version.cmake writes for a clean checkout, for a changed one, and for
sources without git."""
import os
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile
import unittest

CMAKE = sys.argv.pop(1)
SCRIPT = pathlib.Path(__file__).resolve().parents[2] / "kernels/base/version.cmake"
GIT = ["git", "-c", "user.name=a", "-c", "user.email=a@b", "-c", "commit.gpgsign=false"]


@unittest.skipUnless(shutil.which("git"), "git is missing")
class Version(unittest.TestCase):
    def setUp(self):
        self.folder = tempfile.TemporaryDirectory()
        self.addCleanup(self.folder.cleanup)
        self.root = pathlib.Path(self.folder.name)
        self.source, self.out = self.root / "sources", self.root / "version.cc"
        self.source.mkdir()
        (self.source / "file").write_text("1")

    def git(self, *arguments, folder=None):
        done = subprocess.run(GIT + ["-C", str(folder or self.source), *arguments], check=True, capture_output=True)
        return done.stdout.decode().strip()

    def commit(self, folder=None):
        self.git("add", "-A", folder=folder)
        self.git("commit", "-q", "-m", "a commit", folder=folder)
        return self.git("rev-parse", "--short=12", "HEAD", folder=folder)

    def version(self):
        subprocess.run([CMAKE, f"-DSOURCE={self.source}", "-DVERSION=1.2.3", f"-DOUT={self.out}", "-P", str(SCRIPT)],
                       check=True)
        return re.search(r'"(1[^"]*)"', self.out.read_text()).group(1)

    def test_a_checkout_has_its_commit_and_says_that_it_was_changed(self):
        self.git("init", "-q")
        self.assertEqual(self.version(), "1.2.3", "no commit yet")
        first = self.commit()
        self.assertEqual(self.version(), f"1.2.3 ({first})")
        (self.source / "untracked").write_text("")
        self.assertEqual(self.version(), f"1.2.3 ({first})")
        (self.source / "file").write_text("22")
        self.assertEqual(self.version(), f"1.2.3 ({first}, changed)")
        second = self.commit()
        self.assertNotEqual(second, first)
        self.assertEqual(self.version(), f"1.2.3 ({second})")

    def test_the_file_is_not_rewritten_without_a_change(self):
        self.git("init", "-q")
        self.commit()
        self.version()
        os.utime(self.out, ns=(1, 1))
        os.utime(self.source / "file")  # touched, not changed
        self.version()
        self.assertEqual(self.out.stat().st_mtime_ns, 1)
        self.git("commit", "-q", "--allow-empty", "-m", "another")
        self.version()
        self.assertNotEqual(self.out.stat().st_mtime_ns, 1)

    def test_sources_without_git_have_only_the_version_even_within_another_checkout(self):
        self.assertEqual(self.version(), "1.2.3")
        self.git("init", "-q", folder=self.root)
        self.commit(folder=self.root)
        self.assertEqual(self.version(), "1.2.3")


if __name__ == "__main__":
    unittest.main()
