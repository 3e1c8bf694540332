"""Compiles the PTX model and programs of this folder, for the scripts beside it; only what has changed.

The compiler's flags equal those of tests/model/ptx/CMakeLists.txt. Everything is position-independent, because the fake
CUDA driver is a shared library.
"""

import os
import re
import subprocess
import sys

FOLDER = os.path.dirname(os.path.abspath(__file__))
MODEL = os.path.dirname(FOLDER)
ROOT = os.path.dirname(os.path.dirname(os.path.dirname(MODEL)))
CUDA = os.environ.get("CUDA_HOME", "/usr/local/cuda")
FLAGS = ["-std=c++20", "-O2", "-g1", "-fPIC", "-fwrapv", "-ffp-contract=off", "-mf16c", "-Wall", "-Wextra",
         "-Wno-unused-parameter", "-Wno-missing-field-initializers", f"-I{ROOT}", "-isystem", f"{CUDA}/include"]


def run(command, **options):
    """Runs a command at low priority; ends the script if it fails."""
    subprocess.run(["nice", "-n", "5", *command], check=True, **options)


def environment(folder, packages):
    """Makes a virtual environment with these packages unless it exists; returns its Python."""
    python = os.path.join(folder, "bin", "python")
    if not os.path.exists(python):
        run([sys.executable, "-m", "venv", folder])
        run([python, "-m", "pip", "install", "-q", *packages])
    return python


def newer(target, sources):
    """Returns whether the target exists and is newer than all sources."""
    return os.path.exists(target) and all(os.path.getmtime(source) <= os.path.getmtime(target) for source in sources)


def files_of_model(ending):
    found = []
    for folder, _, names in os.walk(MODEL):
        if os.path.basename(folder) == "known_good":
            continue
        found += [os.path.join(folder, name) for name in names if name.endswith(ending)]
    return sorted(found)


def compile_object(build, source):
    """Compiles a source file into the build folder; returns the object."""
    target = os.path.join(build, os.path.splitext(os.path.basename(source))[0] + ".o")
    headers = files_of_model(".h")
    if os.path.dirname(source) == FOLDER:
        headers += [os.path.join(FOLDER, name) for name in os.listdir(FOLDER) if name.endswith(".h")]
    if not newer(target, [source, *headers]):
        print("compiles", os.path.relpath(source, ROOT), flush=True)
        run(["g++", *FLAGS, "-c", "-o", target, source])
    return target


def model_archive(build):
    """Compiles the model without its tests; returns the archive."""
    os.makedirs(build, exist_ok=True)
    sources = [name for name in files_of_model(".cc") if not name.endswith("_test.cc") and "test_kernel" not in name]
    objects = [compile_object(build, source) for source in sources]
    archive = os.path.join(build, "libptx_model.a")
    if not newer(archive, objects):
        if os.path.exists(archive):
            os.remove(archive)
        run(["ar", "rcs", archive, *objects])
    return archive


def link(build, target, objects, options=()):
    """Links objects with the model; returns the target's path."""
    archive = model_archive(build)
    target = os.path.join(build, target)
    if not newer(target, [*objects, archive]):
        run(["g++", *options, "-o", target, *objects, archive])
    return target


def fake_driver(build):
    """Returns the path of libcuda.so.1."""
    return link(build, "libcuda.so.1", [compile_object(build, os.path.join(FOLDER, "fake_cuda.cc"))],
                ["-shared", "-Wl,-soname,libcuda.so.1"])


def triton_run(build):
    """Returns the path of the program that runs one of Triton's kernels."""
    return link(build, "triton_run", [compile_object(build, os.path.join(FOLDER, "triton_run.cc"))])


def kernel_in_image(path, kernel):
    """Returns the PTX of one kernel in a fat binary that nvcc made with --no-compress."""
    with open(path, "rb") as file:
        image = file.read()
    texts = [image[found.start():image.index(b"\0", found.start())].decode() for found in re.finditer(rb"\.version \d", image)
             if b"sm_90a" in image[found.start():image.index(b"\0", found.start())][:120]]
    head, *entries = texts[0].split(".visible .entry ")
    entry = next(text for text in entries if text.startswith(kernel + "("))
    # The sections for debuggers follow the last kernel.
    return head + ".visible .entry " + entry.split("\n\t.file", 1)[0]
