"""agmm.jax: products inside and outside jax.jit."""

import os
import subprocess
import sys

import agmm
import ml_dtypes
import numpy as np
import pytest
from support import integers

jax = pytest.importorskip("jax", reason="jax is not installed")

import agmm.jax  # noqa: E402
import jax.numpy as jnp  # noqa: E402


@pytest.fixture(scope="module")
def client():
    with agmm.local(2, heap="256MiB", threads=1) as client:
        yield client


@pytest.mark.parametrize("dtype", [np.float32, np.float16, ml_dtypes.bfloat16])
def test_products_are_exact_inside_and_outside_jit(client, dtype):
    a, b = integers(6, 8, 1, dtype), integers(8, 4, 2, dtype)
    expected = (a.astype(np.float32) @ b.astype(np.float32)).astype(dtype)
    for function in (agmm.jax.matmul, jax.jit(agmm.jax.matmul, static_argnames=("client",))):
        product = function(jnp.asarray(a), jnp.asarray(b), client=client)
        assert product.dtype == dtype and np.array_equal(np.asarray(product), expected)


def test_a_jitted_function_has_products_between_its_own_operations(client):
    @jax.jit
    def forward(x, v, w):
        h = jnp.maximum(agmm.jax.matmul(x, v, client=client), 0)
        return agmm.jax.matmul(h, w, spec="H[M, K_x] * W[K_x, N] -> Y[M, N]", client=client) + 1

    x, v, w = integers(5, 6, 1), integers(6, 8, 2), integers(8, 3, 3)
    assert np.array_equal(np.asarray(forward(x, v, w)), np.maximum(x @ v, 0) @ w + 1)


def test_large_operands_do_not_block(client):
    a, b = integers(1024, 1024, 1), integers(1024, 1024, 2)
    product = jax.jit(lambda a, b: agmm.jax.matmul(a * 1, b * 1, client=client).sum())
    assert float(product(a, b)) == float((a @ b).sum(dtype=np.float64))


def test_the_spec_gives_the_result_its_dtype(client):
    a, b = integers(4, 4, 1, np.float16), integers(4, 4, 2, np.float16)
    product = agmm.jax.matmul(a, b, spec="A[M_x, K] * B[K, N_x] -> C[M, N_x]:f32", client=client)
    assert product.dtype == np.float32 and np.array_equal(np.asarray(product), a.astype(np.float32) @ b.astype(np.float32))


def test_vmap_makes_one_product_after_the_other(client):
    a = np.stack([integers(4, 4, seed) for seed in range(3)])
    b = integers(4, 4, 9)
    products = jax.vmap(lambda each: agmm.jax.matmul(each, b, client=client))(a)
    assert np.array_equal(np.asarray(products), a @ b)


def test_wrong_inputs_are_refused_while_tracing(client):
    a = integers(4, 4, 1)
    with pytest.raises(agmm.InvalidArgument, match="have no product"):
        jax.jit(lambda: agmm.jax.matmul(a, a[:3], client=client))()
    with pytest.raises(agmm.InvalidArgument, match="int32"):
        agmm.jax.matmul(a.astype(np.int32), a, client=client)
    with pytest.raises(agmm.InvalidArgument, match="not a product"):
        agmm.jax.matmul(a, a, spec="A[M, K]", client=client)


def test_errors_of_the_product_reach_the_caller(client):
    a = integers(4, 4, 1)
    multiply = jax.jit(lambda a: agmm.jax.matmul(a, a, client=client, algorithm="no such"))
    with pytest.raises(Exception, match="no such"):
        multiply(a).block_until_ready()
    assert np.array_equal(np.asarray(agmm.jax.matmul(a, a, client=client)), a @ a)


def test_a_gradient_is_refused(client):
    a = integers(4, 4, 1)
    with pytest.raises(Exception, match="JVP|differentiat"):
        jax.grad(lambda a: agmm.jax.matmul(a, a, client=client).sum())(a)


def test_a_mapped_array_is_exported_to_jax(client):
    a = integers(4, 32, 1)  # jax takes rows without gaps
    client.put("M", a, "[M, K]", ranks=[0])
    with client.map("M", writable=True) as mapping:
        assert np.array_equal(np.asarray(jax.dlpack.from_dlpack(mapping.array)), a)
        mapping.commit()


def test_an_array_over_several_devices_of_jax_is_put():
    code = """
import agmm, jax, numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec
mesh = Mesh(np.array(jax.devices()), ("x",))
assert mesh.size == 2
a = np.arange(32, dtype=np.float32).reshape(4, 8)
with agmm.local(2, heap="16MiB", threads=1) as client:
    given = jax.device_put(a, NamedSharding(mesh, PartitionSpec("x", None)))
    assert np.array_equal(client.put("A", given, "[M_x, K]").numpy(), a)
"""
    environment = {**os.environ, "JAX_PLATFORMS": "cpu", "XLA_FLAGS": "--xla_force_host_platform_device_count=2"}
    done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def test_import_agmm_leaves_jax_alone():
    code = "import agmm, agmm.aio, sys; sys.exit('jax' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code]).returncode == 0


def test_a_detached_array_is_no_operand(client):
    client.fill("A", (4, 4), "[M, K]", ranks=[0])
    with client.map("A") as mapping:
        array = mapping.array
        agmm.jax.matmul(array, np.ones((4, 4), np.float32), client=client)
    for operands in ((array, np.ones((4, 4), np.float32)), (np.ones((4, 4), np.float32), array)):
        with pytest.raises(agmm.FailedPrecondition, match="tensor 'A' is detached"):
            agmm.jax.matmul(*operands, client=client)
