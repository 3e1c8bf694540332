"""agmmctl reads what NumPy and safetensors write, and they read what it writes: every bit.

    interoperability_test.py BIN_FOLDER

Needs the packages numpy, ml_dtypes and safetensors.
"""

import json
import os
import pathlib
import shutil
import subprocess
import sys
import tempfile
import unittest

import ml_dtypes
import numpy
import safetensors
import safetensors.numpy

BIN = pathlib.Path(sys.argv.pop())
DEADLINE_S = 30
DTYPES = {"f32": numpy.float32, "f16": numpy.float16, "bf16": ml_dtypes.bfloat16}


def values(rows, cols, dtype):
    """Random values with all that a copy can lose: NaN, infinities, denormals, -0.0."""
    array = numpy.random.default_rng(rows * 1000 + cols).standard_normal((rows, cols)).astype(dtype)
    info = ml_dtypes.finfo(dtype)
    special = [numpy.nan, -numpy.inf, numpy.inf, info.smallest_subnormal, -0.0, info.max]
    array.reshape(-1)[: len(special)] = numpy.array(special).astype(dtype)[: array.size]
    return array


def bits(array):
    return numpy.ascontiguousarray(array).view(numpy.uint8).tobytes()


class Interoperability(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.folder = pathlib.Path(tempfile.mkdtemp(prefix="agmm-files-"))
        cls.addClassCleanup(shutil.rmtree, cls.folder)
        socket = cls.folder / "agmm.sock"
        cls.environment = {**os.environ, "AGMM_ENDPOINT": f"unix:{socket}"}
        cls.log = open(cls.folder / "agmmd.log", "w")
        cls.addClassCleanup(cls.log.close)
        daemon = subprocess.Popen([BIN / "agmmd", "--socket", socket, "--until-stdin-ends"], stdin=subprocess.PIPE, stderr=cls.log)
        cls.addClassCleanup(daemon.wait, DEADLINE_S)
        cls.addClassCleanup(daemon.stdin.close)
        cls.ctl("status", "--ready", "--timeout", f"{DEADLINE_S}s")

    @classmethod
    def ctl(cls, *arguments):
        command = [BIN / "agmmctl", *map(str, arguments), "--json"]
        ran = subprocess.run(command, env=cls.environment, capture_output=True, text=True, timeout=DEADLINE_S)
        if ran.returncode != 0:
            raise AssertionError(f"{arguments}: {ran.stderr}")
        return json.loads(ran.stdout)

    def load(self, tensors, *flags):
        path = self.folder / "in.safetensors"
        safetensors.numpy.save_file(tensors, path, metadata={"format": "pt"})
        return self.ctl("tensor", "load", path, *flags)

    def save(self, *names):
        path = self.folder / "out.safetensors"
        self.ctl("tensor", "save", path, *names, "--metadata", "format=pt")
        with safetensors.safe_open(path, "numpy") as file:
            self.assertEqual(file.metadata(), {"format": "pt"})
        return safetensors.numpy.load_file(path)

    def test_every_dtype_keeps_its_bits_both_ways(self):
        tensors = {f"{name}.{rows}x{cols}": values(rows, cols, dtype)
                   for name, dtype in DTYPES.items() for rows, cols in [(1, 1), (3, 5), (64, 33), (257, 512)]}
        loaded = self.load(tensors, "--rule", "*=[M, N_x]")
        self.assertEqual({each["name_in_file"] for each in loaded["loaded"]}, set(tensors))
        saved = self.save(*tensors)
        for name, array in tensors.items():
            self.assertEqual(saved[name].dtype, array.dtype, name)
            self.assertEqual(saved[name].shape, array.shape, name)
            self.assertEqual(bits(saved[name]), bits(array), name)

    def test_a_transposed_tensor_is_the_transpose(self):
        tensors = {name: values(65, 130, dtype) for name, dtype in DTYPES.items()}
        self.load(tensors, "--rule", "*=[K, N_x]", "--transpose", "*", "--prefix", "t.")
        saved = self.save(*[f"t.{name}" for name in tensors])
        for name, array in tensors.items():
            self.assertEqual(bits(saved[f"t.{name}"]), bits(array.T), name)

    def test_a_converted_tensor_is_rounded_as_ml_dtypes_does(self):
        array = numpy.random.default_rng(7).standard_normal((31, 17)).astype(numpy.float32)
        for name, dtype in DTYPES.items():
            self.load({"c": array}, "--rule", "*=[M, N]", "--dtype", name)
            self.assertEqual(bits(self.save("c")["c"]), bits(array.astype(dtype)), name)

    def test_one_dimension_is_a_row_and_other_tensors_can_be_skipped(self):
        tensors = {"bias": numpy.arange(5, dtype=numpy.float32), "scalar": numpy.array(3, numpy.float16),
                   "ids": numpy.arange(6), "cube": numpy.zeros((2, 2, 2), numpy.float32),
                   "empty": numpy.zeros((0, 4), numpy.float32), "mask": numpy.ones(3, bool)}
        loaded = self.load(tensors, "--rule", "bias=[M, N]", "--rule", "scalar=[M, N]")
        self.assertEqual(set(loaded["skipped"]), {"ids", "cube", "empty", "mask"})
        saved = self.save("bias", "scalar")
        self.assertEqual(saved["bias"].tolist(), [[0, 1, 2, 3, 4]])
        self.assertEqual(saved["scalar"].tolist(), [[3]])

    def test_npy_files_keep_their_bits_both_ways(self):
        for name in ("f32", "f16"):
            array = values(33, 20, DTYPES[name])
            for order in ("C", "F"):
                path = self.folder / f"{name}.npy"
                numpy.save(path, numpy.array(array, order=order))
                self.ctl("tensor", "load", path, "--rule", f"{name}=[M_x, N]")
                out = self.folder / "out.npy"
                self.ctl("tensor", "save", out, name)
                self.assertEqual(bits(numpy.load(out)), bits(array), (name, order))

    def test_bf16_in_an_npy_file_is_f32(self):
        array = values(4, 6, ml_dtypes.bfloat16)
        self.load({"b": array}, "--rule", "*=[M, N]")
        out = self.folder / "b.npy"
        self.ctl("tensor", "save", out, "b")
        numpy.testing.assert_array_equal(numpy.load(out), array.astype(numpy.float32))

    def test_names_survive(self):
        tensors = {name: values(2, 3, numpy.float32) for name in ("a/b.c", "größe", 'quoted "x"', "back\\slash")}
        self.load(tensors, "--rule", "*=[M, N]")
        self.assertEqual(set(self.save(*tensors)), set(tensors))


if __name__ == "__main__":
    unittest.main()
