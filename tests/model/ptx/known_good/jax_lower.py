"""Lowers a kernel of JAX's Pallas for Mosaic GPU, on a machine without a GPU: to the MLIR that Mosaic's compiler takes.

    jax_lower.py KIND GPUS ROWS COLS DEPTH CTAS CONFIG OUTPUT

jax_kernels.py says what the arguments mean. JAX must not be imported before the number of devices is set, so this is a
program of its own.
"""

import functools
import os
import sys
import types


def matmul_config(module, config):
    """Returns a tuning of the products; `config` is six fields with commas between them."""
    *numbers, dimension = config.split(",")
    tile_m, tile_n, tile_k, steps, width = map(int, numbers)
    return module.TuningConfig(tile_m=tile_m, tile_n=tile_n, tile_k=tile_k, max_concurrent_steps=steps,
                               grid_tile_width=width, wg_dimension=module.MatmulDimension[dimension])


def kernel_and_shapes(kind, gpus, rows, cols, depth, ctas, config):
    """Returns a function, the shapes of its arguments, and how they and the result are divided among the GPUs."""
    import jax
    from jax.experimental.pallas.ops.gpu import all_gather_mgpu, collective_matmul_mgpu, hopper_matmul_mgpu
    from jax.experimental.pallas.ops.gpu import reduce_scatter_mgpu

    class JaxWithoutGpu(types.ModuleType):
        """JAX, except that its devices have a number of SMs."""

        def __getattr__(self, name):
            return getattr(jax, name)

        def devices(self):
            return [types.SimpleNamespace(core_count=ctas)]

    collective_matmul_mgpu.jax = JaxWithoutGpu("jax")
    hopper_matmul_mgpu.get_num_sms = lambda: ctas
    across, down = jax.sharding.PartitionSpec(None, "x"), jax.sharding.PartitionSpec("x", None)
    config = matmul_config(hopper_matmul_mgpu, config)
    if kind == "matmul":
        function = lambda a, b: hopper_matmul_mgpu.matmul(a, b, None, config=config)
        return function, [(rows, depth), (depth, cols)], None, None
    if kind == "ring":
        function = functools.partial(collective_matmul_mgpu.all_gather_lhs_matmul, axis_name="x", config=config,
                                     dtype=jax.numpy.float16)
        return function, [(rows * gpus, depth), (depth, cols * gpus)], (down, across), across
    module = {"all_gather": all_gather_mgpu.all_gather, "reduce_scatter": reduce_scatter_mgpu.reduce_scatter}[kind]
    function = functools.partial(module, axis_name="x", num_blocks=ctas)
    return function, [(rows * gpus, cols)], (down,), down


def main():
    kind, config, output = sys.argv[1], sys.argv[7], sys.argv[8]
    gpus, rows, cols, depth, ctas = map(int, sys.argv[2:7])
    os.environ["XLA_FLAGS"] = f"--xla_force_host_platform_device_count={gpus}"
    os.environ["JAX_PLATFORMS"] = "cpu"
    import jax
    from jax.experimental.mosaic.gpu import core, utils

    utils._infer_arch = lambda: (9, 0)  # pylint: disable=protected-access
    mesh = jax.make_mesh((gpus,), ("x",), axis_types=(jax.sharding.AxisType.Explicit,))
    jax.set_mesh(mesh)
    function, shapes, inputs, result = kernel_and_shapes(kind, gpus, rows, cols, depth, ctas, config)
    if inputs is None:
        arguments = [jax.ShapeDtypeStruct(shape, jax.numpy.float16) for shape in shapes]
    else:
        function = jax.shard_map(function, in_specs=inputs, out_specs=result, check_vma=False)
        arguments = [jax.ShapeDtypeStruct(shape, jax.numpy.float16, sharding=jax.sharding.NamedSharding(mesh, spec))
                     for shape, spec in zip(shapes, inputs)]
    jax.jit(function).trace(*arguments).lower(lowering_platforms=("cuda",))
    (module,) = core.KNOWN_KERNELS.values()
    with open(output, "wb") as file:
        file.write(module)


if __name__ == "__main__":
    main()
