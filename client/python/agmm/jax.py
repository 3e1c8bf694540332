"""agmm in JAX programs: a product that jax.jit traces.

Importing agmm does not import jax; importing this module does.

The product is a jax.pure_callback, not a foreign function (FFI). Both hand host memory to this process, from which the
product goes to a daemon, and a callback needs no code that is built for one version of XLA. A callback holds the GIL only
while it starts and ends; it waits without it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import jax
import numpy as np

from . import errors, shared
from .dtypes import DTYPES
from .mapping import check_attached
from .product import operands_of, result_dtype_of

if TYPE_CHECKING:
    from typing_extensions import Unpack

    from .client import Client
    from .requests import JobOptions

__all__ = ["matmul"]


def matmul(a: Any, b: Any, *, spec: str = "A[M_x, K] * B[K, N_x] -> C[M, N_x]", client: Client | None = None,
           **options: Unpack[JobOptions]) -> jax.Array:
    """Returns the product of two matrices, computed on the devices of a world; inside and outside jax.jit.

    a, b: M x K and K x N, of one dtype: float32, bfloat16 or float16. vmap makes one product after the other.
    spec: the shardings over the devices of the world, which jax does not know; C has the dtype of A, or the one after a
        colon: "C[M, N_x]:f32".
    client: None stands for the process's own, as for agmm.matmul. Compiled code keeps it.
    options: see agmm.JobOptions.
    Errors: InvalidArgument while tracing; those of agmm.matmul, outside jit; inside, a jax.errors.JaxRuntimeError with
    their text. It has no gradient: jax says so when one is taken.
    """
    operands_of(spec)
    for operand in (a, b):
        check_attached(operand)  # jax reads a mapped array's memory without its guard
    a, b = jax.numpy.asarray(a), jax.numpy.asarray(b)
    if a.ndim != 2 or b.ndim != 2 or a.shape[1] != b.shape[0]:
        raise errors.InvalidArgument(f"shapes {a.shape} and {b.shape} have no product; give M x K and K x N")
    for name, operand in (("a", a), ("b", b)):
        if operand.dtype not in DTYPES:
            raise errors.InvalidArgument(f"{name} has dtype {operand.dtype}; convert it: {name}.astype(jax.numpy.float32), or to bfloat16 or float16")

    def multiply(a: Any, b: Any) -> np.ndarray[Any, Any]:
        return shared.matmul(np.asarray(a), np.asarray(b), spec=spec, client=client, **options)

    result = jax.ShapeDtypeStruct((a.shape[0], b.shape[1]), result_dtype_of(spec) or a.dtype)
    return jax.pure_callback(multiply, result, a, b, vmap_method="sequential")
