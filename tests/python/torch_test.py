"""agmm.torch: layers with resident weights against torch.nn.Linear, and torch.compile."""

import concurrent.futures
import copy
import io
import pickle
import subprocess
import sys
import threading

import agmm
import numpy as np
import pytest
from support import SPEC

torch = pytest.importorskip("torch", reason="torch is not installed")

import agmm.torch  # noqa: E402
from agmm.torch import TensorParallelLinear  # noqa: E402
from torch import library  # noqa: E402

# The daemons of the tests have the cores; torch's own threads would spin for them.
torch.set_num_threads(1)

# A rounding of the result, in units of its largest element: half a unit in the last place, and what sums in another order
# differ by.
BOUNDS = {torch.float32: 1e-6, torch.bfloat16: 2.0**-8, torch.float16: 2.0**-10}
DTYPES = list(BOUNDS)


@pytest.fixture(scope="module")
def daemon():
    daemon = agmm.local(4, heap="64MiB", threads=1)
    daemon.start()
    yield daemon
    daemon.close()


@pytest.fixture
def remote():
    """A client over two daemons: no mapping has all shards."""
    with agmm.world([1, 1], heap="64MiB", threads=1) as world:
        yield world.clients[0]


def linear(dtype, bias=True, inputs=48, outputs=40):
    torch.manual_seed(1)
    return torch.nn.Linear(inputs, outputs, bias=bias).to(dtype)


def x_of(*shape, dtype=torch.float32):
    torch.manual_seed(2)
    return torch.randn(*shape).to(dtype)


def exact(layer, x):
    """The layer's product in float64, of the operands as they are."""
    y = x.double() @ layer.weight.detach().double().t()
    return y if layer.bias is None else y + layer.bias.detach().double()


def assert_close(y, expected, dtype):
    assert y.dtype == dtype and y.shape == expected.shape
    error = (y.double() - expected).abs().max().item()
    assert error <= BOUNDS[dtype] * expected.abs().max().item()


@torch.no_grad()
@pytest.mark.parametrize("bias", [True, False], ids=["bias", "no bias"])
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("style", ["column", "row"])
def test_a_layer_computes_what_nn_linear_does(client, style, dtype, bias):
    original = linear(dtype, bias)
    for devices in (1, 2, 4):
        layer = TensorParallelLinear.from_linear(original, client, style, devices)
        for rows in (8, 8, 3):
            x = x_of(rows, 48, dtype=dtype)
            assert_close(layer(x), exact(original, x), dtype)
        assert layer.mapped
        moved = sum(each.bytes for each in layer.last.figures.moved)
        assert (moved > 0) == (devices > 1)
        layer.close()
    assert client.tensors() == []


@torch.no_grad()
def test_devices_are_a_number_or_ranks(client):
    original = linear(torch.float32)
    for devices in (2, np.int64(2), [0, 1], (0, 1), np.arange(2), range(2)):
        layer = TensorParallelLinear.from_linear(original, client, devices=devices)
        assert tuple(client.tensor(layer.name).ranks) == (0, 1)
        layer.close()


@torch.no_grad()
def test_shapes_keep_their_leading_dimensions(client):
    original = linear(torch.float32)
    layer = TensorParallelLinear.from_linear(original, client, devices=2)
    for x in (x_of(48), x_of(2, 3, 48), x_of(0, 48), x_of(48, 6).t(), x_of(1, 1, 48).expand(2, 4, 48)):
        assert_close(layer(x), exact(original, x), torch.float32) if x.numel() else None
        assert layer(x).shape == (*x.shape[:-1], 40)


@torch.no_grad()
def test_results_do_not_change_with_the_next_call(client):
    original = linear(torch.float32)
    layer = TensorParallelLinear.from_linear(original, client, devices=2)
    first = layer(x_of(4, 48))
    kept = first.clone()
    layer(torch.zeros(4, 48))
    assert torch.equal(first, kept)


@torch.no_grad()
def test_a_layer_of_a_closed_client_says_so(daemon):
    with agmm.connect(daemon.endpoint, session=True) as client:
        layer = TensorParallelLinear.from_linear(linear(torch.float32), client, devices=2)
    with pytest.raises(agmm.FailedPrecondition, match="the client of weight .* is closed"):
        layer(x_of(4, 48))


@torch.no_grad()
@pytest.mark.parametrize("style", ["column", "row"])
def test_devices_of_several_daemons_take_puts_and_gets(remote, style):
    original = linear(torch.bfloat16)
    layer = TensorParallelLinear.from_linear(original, remote, style)
    for rows in (5, 5, 2):
        x = x_of(rows, 48, dtype=torch.bfloat16)
        assert_close(layer(x), exact(original, x), torch.bfloat16)
    assert layer.mapped is False
    assert any(each.path == "network" for each in layer.last.figures.moved)


@torch.no_grad()
def test_a_resident_weight_serves_several_layers(client):
    original = linear(torch.float32)
    put = client.put("W", original.weight.detach().t(), "[D, F_tp]", mesh="tp=2")
    layer = TensorParallelLinear(client, put, original.bias)
    assert (layer.style, layer.in_features, layer.out_features) == ("column", 48, 40)
    x = x_of(4, 48)
    assert_close(layer(x), exact(original, x), torch.float32)
    assert "style='column'" in repr(layer) and "ranks=[0, 1]" in repr(layer)


@torch.no_grad()
def test_threads_share_a_layer(client):
    original = linear(torch.float32)
    layer = TensorParallelLinear.from_linear(original, client, devices=2)
    wrong = []

    def use(i):
        for j in range(5):
            x = torch.full((2 + i % 2, 48), float(i + j))
            try:
                with torch.no_grad():
                    assert_close(layer(x), exact(original, x), torch.float32)
            except Exception as error:
                wrong.append(error)

    threads = [threading.Thread(target=use, args=(i,)) for i in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []


def test_wrong_inputs_are_refused_with_the_way_out(client):
    layer = TensorParallelLinear.from_linear(linear(torch.float32), client, devices=2)
    with pytest.raises(agmm.Unimplemented, match="no gradient"):
        layer(x_of(2, 48).requires_grad_())
    with torch.no_grad():
        layer(x_of(2, 48).requires_grad_())
    with pytest.raises(agmm.InvalidArgument, match="must be 48"):
        layer(x_of(2, 47))
    with pytest.raises(agmm.InvalidArgument, match=r"give x.to\(torch.float32\)"):
        layer(x_of(2, 48, dtype=torch.float16))
    with pytest.raises(agmm.InvalidArgument, match="x.cpu()"):
        layer(x_of(2, 48).to("meta"))
    with pytest.raises(agmm.InvalidArgument, match="style"):
        TensorParallelLinear.from_linear(linear(torch.float32), client, "diagonal")
    for devices in (0, True, 2.5, [0.5], "2"):
        with pytest.raises(agmm.InvalidArgument, match="devices is|a rank is"):
            TensorParallelLinear.from_linear(linear(torch.float32), client, devices=devices)
    with pytest.raises(agmm.InvalidArgument, match="float64"):
        TensorParallelLinear.from_linear(linear(torch.float64), client)
    with pytest.raises(agmm.InvalidArgument, match="sharding"):
        TensorParallelLinear(client, client.fill("V", (4, 4), "[K, N]", ranks=[0]))


@torch.no_grad()
def test_a_closed_layer_fails_and_a_deletion_does_no_harm(client):
    original = linear(torch.float32)
    layer = TensorParallelLinear.from_linear(original, client, devices=2)
    x = x_of(2, 48)
    layer(x)
    client.delete(next(tensor for tensor in client.tensors() if tensor.name.endswith(".x")))
    assert_close(layer(x), exact(original, x), torch.float32)
    layer.close()
    layer.close()
    with pytest.raises(agmm.FailedPrecondition, match="closed"):
        layer(x)


@torch.no_grad()
def test_layers_that_share_a_weight_do_not_meet(client):
    original = linear(torch.float32, bias=False)
    owner = TensorParallelLinear.from_linear(original, client, devices=2, name="W")
    others = [client.fill(f"W.{name}", (2, 2), "[K, N]", ranks=[0], kind="constant", value=3) for name in "xy"]
    layers = [owner, TensorParallelLinear(client, "W"), TensorParallelLinear(client, "W")]

    def use(i):
        with torch.no_grad():
            for j in range(10):
                x = torch.full((2, 48), float(10 * i + j))
                assert_close(layers[i](x), exact(original, x), torch.float32)

    with concurrent.futures.ThreadPoolExecutor(len(layers)) as pool:
        assert list(pool.map(use, range(len(layers)))) == [None] * len(layers)
    layers[1].close()
    layers[2].close()
    x = x_of(2, 48)
    assert_close(owner(x), exact(original, x), torch.float32)
    owner.close()
    assert sorted(tensor.name for tensor in client.tensors()) == ["W.x", "W.y"]
    assert all((other.numpy() == 3).all() for other in others)


@torch.no_grad()
def test_a_dropped_layer_leaves_nothing(client):
    layer = TensorParallelLinear.from_linear(linear(torch.float32), client, devices=2)
    layer(x_of(2, 48))
    assert len(client.tensors()) == 3
    del layer
    client._sweep()  # as the next call that makes a tensor does
    assert client.tensors() == []


@torch.no_grad()
def test_a_closed_client_leaves_nothing_of_a_layer(client):
    with agmm.connect(client.endpoint) as other:
        layer = TensorParallelLinear.from_linear(linear(torch.float32), other, devices=2)
        layer(x_of(2, 48))
        assert len(client.tensors()) == 3
    assert client.tensors() == []
    layer.close()


@torch.no_grad()
def test_layers_that_follow_each_other_share_x_and_y(client):
    layers = [TensorParallelLinear.from_linear(linear(torch.float32, inputs=48, outputs=48), client, devices=2) for _ in range(5)]
    y = x_of(4, 48)
    for layer in layers:
        y = layer(y)
    assert len(client.tensors()) == len(layers) + 2
    for layer in layers[:-1]:
        layer.close()
    assert len(client.tensors()) == 3
    layers[-1].close()
    assert client.tensors() == []


@torch.no_grad()
def test_a_lost_daemon_is_an_error():
    with agmm.world([1], heap="16MiB") as world:
        layer = TensorParallelLinear.from_linear(linear(torch.float32), world.clients[0])
        layer(x_of(2, 48))
        world.kill(0)
        with pytest.raises(agmm.Error):
            layer(x_of(2, 48))


@torch.no_grad()
@pytest.mark.parametrize("backend", ["eager", "aot_eager"])
def test_compiled_code_has_the_layer_and_the_operator(client, backend):
    original = linear(torch.float32)
    layer = TensorParallelLinear.from_linear(original, client, devices=2)
    agmm.torch.set_client(client)
    try:
        weight = x_of(40, 16)

        @torch.compile(fullgraph=True, backend=backend)
        def forward(x):
            return agmm.torch.matmul(torch.relu(layer(x)) * 2, weight) + 1

        x = x_of(6, 48)
        expected = (torch.relu(exact(original, x)) * 2) @ weight.double() + 1
        assert_close(forward(x), expected, torch.float32)
    finally:
        agmm.torch.set_client(None)


@torch.no_grad()
def test_the_operator_passes_torchs_own_checks(client):
    agmm.torch.set_client(client)
    try:
        for spec in ("A[M_x, K] * B[K, N_x] -> C[M, N_x]", "A[M, K_x] * B[K_x, N] -> C[M_x, N]:f32"):
            arguments = (x_of(6, 8, dtype=torch.bfloat16), x_of(8, 4, dtype=torch.bfloat16), spec)
            library.opcheck(torch.ops.agmm.matmul.default, arguments)
            product = agmm.torch.matmul(*arguments)
            assert product.dtype == (torch.float32 if "f32" in spec else torch.bfloat16)
            assert_close(product, arguments[0].double() @ arguments[1].double(), product.dtype)
        with pytest.raises(agmm.InvalidArgument, match="have no product"):
            agmm.torch.matmul(x_of(2, 3), x_of(4, 5))
        with torch.enable_grad(), pytest.raises(agmm.Unimplemented, match="no gradient"):
            agmm.torch.matmul(x_of(2, 3).requires_grad_(), x_of(3, 5))
    finally:
        agmm.torch.set_client(None)


def test_import_agmm_leaves_torch_alone():
    code = "import agmm, agmm.aio, sys; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code]).returncode == 0


@torch.no_grad()
def test_a_client_can_be_given_to_the_operator(client, remote):
    a, b = x_of(6, 8), x_of(8, 4)
    assert_close(agmm.torch.matmul(a, b, client=client), a.double() @ b.double(), torch.float32)
    library.opcheck(torch.ops.agmm.matmul.default, (a, b, SPEC, agmm.torch._key_of(client)))
    jobs = [len(each.jobs(10_000)) for each in (client, remote)]

    @torch.compile(fullgraph=True, backend="eager")
    def forward(x, used):
        return agmm.torch.matmul(x * 2, b, client=used) + 1

    for count in (1, 2):
        for used in (remote, client):
            assert_close(forward(a, used), 2 * a.double() @ b.double() + 1, torch.float32)
        assert [len(each.jobs(10_000)) for each in (client, remote)] == [jobs[0] + count, jobs[1] + count]


def test_threads_give_their_clients_to_the_operator():
    threads, each = 4, 500
    clients = [[agmm.Client(None, "", session=True) for _ in range(each)] for _ in range(threads)]
    with concurrent.futures.ThreadPoolExecutor(threads) as pool:
        keys = [pool.submit(lambda own=own: [agmm.torch._key_of(client) for client in own]) for own in clients]
        found = sum((key.result() for key in keys), [])
    assert len(set(found)) == threads * each and 0 not in found
    assert [agmm.torch._key_of(client) for own in clients for client in own] == found


def test_an_argument_that_is_no_client_is_refused():
    with pytest.raises(agmm.InvalidArgument, match="client is 'unix:/socket', a str; give an agmm.Client"):
        agmm.torch.matmul(x_of(2, 3), x_of(3, 4), client="unix:/socket")


def test_the_operator_does_not_keep_its_client(client, daemon):
    used = agmm.connect(daemon.endpoint)
    key = agmm.torch._key_of(used)
    del used
    with pytest.raises(agmm.FailedPrecondition, match="keep it as long as the code runs"):
        torch.ops.agmm.matmul(x_of(2, 3), x_of(3, 4), SPEC, key)


@pytest.mark.parametrize("use", [copy.deepcopy, copy.copy, pickle.dumps, lambda module: torch.save(module, io.BytesIO())])
def test_a_layer_that_is_copied_or_pickled_says_why_not(client, use):
    layer = TensorParallelLinear.from_linear(linear(torch.float32), client, devices=2)
    with pytest.raises(TypeError, match="cannot be copied or pickled, because its weight is on devices; .* from_linear") as raised:
        use(torch.nn.Sequential(layer) if use is not copy.copy else layer)
    assert "\n" not in str(raised.value)
    layer.close()


def test_a_weight_of_another_dtype_is_told_which_to_ask_for(client):
    with pytest.raises(agmm.InvalidArgument, match=r"dtype torch.float64; pass dtype=torch.float32 to convert it"):
        TensorParallelLinear.from_linear(linear(torch.float64), client)
    TensorParallelLinear.from_linear(linear(torch.float64), client, devices=2, dtype=torch.float32).close()
