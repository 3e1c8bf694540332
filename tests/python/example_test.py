"""The examples, as users run them."""

import os
import pathlib
import subprocess
import sys

import numpy as np
import pytest
from safetensors.numpy import save_file

EXAMPLES = pathlib.Path(__file__).resolve().parents[2] / "client/python/examples"


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    """A small model with BERT's names."""
    random = np.random.default_rng(1)

    def normal(*shape):
        return random.standard_normal(shape).astype(np.float32)

    path = tmp_path_factory.mktemp("model") / "model.safetensors"
    save_file({
        "embeddings.word_embeddings.weight": normal(1010, 24),
        "embeddings.LayerNorm.weight": normal(24),
        "embeddings.LayerNorm.bias": normal(24),
        "encoder.layer.1.intermediate.dense.weight": normal(40, 24),
        "encoder.layer.1.intermediate.dense.bias": normal(40),
        "encoder.layer.1.output.dense.weight": normal(24, 40),
        "encoder.layer.1.output.dense.bias": normal(24),
    }, path)
    return path


@pytest.mark.parametrize("dtype", ["f32", "bf16", "f16"])
def test_the_layer_is_within_its_bound_on_1_2_and_4_devices(model, dtype):
    program = [sys.executable, EXAMPLES / "transformer_mlp.py", model, "--layer", "1", "--tokens", "10", "--dtype", dtype,
               "--repeat", "1"]
    # Threads of NumPy and torch would spin for the cores of the daemons.
    ended = subprocess.run(program, env={**os.environ, "OMP_NUM_THREADS": "1"}, capture_output=True, text=True)
    assert ended.returncode == 0, ended.stdout + ended.stderr
    for text in ("1 device,", "2 devices,", "4 devices,", "of its bound", "moved: nothing", "KiB by memory"):
        assert text in ended.stdout
