"""agmm in PyTorch programs: a tensor-parallel layer with resident weights, and an operator for torch.compile.

Importing agmm does not import torch; importing this module does. Tensors are on the CPU, of float32, bfloat16 or float16.
Nothing here is differentiable: it is for inference.
"""

from __future__ import annotations

import re
import weakref
from collections.abc import Iterable
from typing import Any, NoReturn

import numpy as np
import torch
from torch import library

from . import arguments, arrays, errors, shared
from .client import Client
from .dtypes import DTYPES
from .job_info import JobInfo
from .operands import Pool, Shape
from .product import new_name, result_dtype_of
from .tensor import Kept, Tensor

__all__ = ["TensorParallelLinear", "matmul", "set_client"]

_TORCH_DTYPES: tuple[torch.dtype, ...] = (torch.float32, torch.bfloat16, torch.float16)  # in the order of DTYPES

# A column-parallel layer gathers x by rows, which the product overlaps. A row-parallel layer scatters its sum by columns.
_SPECS = {
    "column": "X[M_{axis}, K] * W[K, N_{axis}] -> Y[M, N_{axis}]",
    "row": "X[M, K_{axis}] * W[K_{axis}, N] -> Y[M, N_{axis}]",
}
_SHARDINGS = {"column": "[K, N_x]", "row": "[K_x, N]"}  # of weights
_SHARDING = re.compile(r"\[\s*[^_\s]+?(?:_(\w+))?\s*,\s*[^_\s]+?(?:_(\w+))?\s*\]")

_layers: weakref.WeakValueDictionary[str, TensorParallelLinear] = weakref.WeakValueDictionary()


class TensorParallelLinear(torch.nn.Module):
    """y = x W + bias, with W resident on devices and split over them. The counterpart of torch.nn.Linear, for inference.

        layer = TensorParallelLinear.from_linear(linear, client, style="column", devices=4)
        y = layer(x)              # x: ... x in_features, on the CPU; y: ... x out_features, of x's dtype
        layer.last.figures.moved  # the bytes that moved between devices

    style "column": each device has some columns of W, and computes the same columns of y from all of x, which is gathered
    between the devices while they multiply. style "row": each device has some rows of W, and x's columns for them; the
    terms of y are added up between the devices.

    If the daemon is on this host (a unix socket) and has all the devices, x is written into the devices' memory and y is
    read from it, through mappings; else x is put and y fetched. `mapped` says which. Float16 and bfloat16 products with a
    bias are computed in float32 and rounded once.

    The weight is no torch parameter: state_dict() has none, so keep the torch.nn.Linear for checkpoints; and to() and half()
    neither move nor convert it, so pass from_linear the dtype. A module cannot be copied or pickled. Gradients: forward raises
    agmm.Unimplemented for an x that requires them, unless under torch.no_grad(). Threads may call a module at once. The
    tensors of x and y on the devices are shared by the modules of a client.
    """

    in_features: int
    out_features: int
    style: str
    dtype: torch.dtype
    name: str
    """Of the weight's tensor."""
    bias: torch.Tensor | None
    """out_features values of float32, on the CPU."""
    last: JobInfo | None
    """The last product: its figures, algorithm and explanation."""
    mapped: bool | None
    """True if x and y pass through mappings, false if they are put and fetched; None before the first product."""

    def __init__(self, client: Client, weight: Tensor | str, bias: torch.Tensor | None = None) -> None:
        """Uses a resident weight, which stays the caller's: several modules may share it, and close() keeps it.

        weight: in_features x out_features (the transpose of nn.Linear's), with sharding "[K, N_x]" (column-parallel) or
            "[K_x, N]" (row-parallel).
        bias: out_features values, or None.
        Errors: NotFound; InvalidArgument.
        """
        super().__init__()
        found = client.tensor(weight) if isinstance(weight, str) else weight
        cuts = _SHARDING.fullmatch(found.sharding)
        if cuts is None or (cuts[1] is None) == (cuts[2] is None):
            raise errors.InvalidArgument(f"the weight {found.name!r} has sharding {found.sharding!r}; give one with "
                                         '"[K, N_x]" (column-parallel) or "[K_x, N]" (row-parallel)')
        style = "row" if cuts[2] is None else "column"
        self.in_features, self.out_features = found.shape
        self.style = style
        self.dtype = _TORCH_DTYPES[DTYPES.index(found.dtype)]
        self.name = found.name
        self.bias = None if bias is None else bias.detach().to("cpu", torch.float32).clone()
        if self.bias is not None and self.bias.shape != (self.out_features,):
            raise errors.InvalidArgument(f"bias has shape {tuple(self.bias.shape)}; give {self.out_features} values")
        self.last = None
        self.mapped = None
        self._client = client
        self._weight = found
        self._kept: Kept | None = None  # the weight, if it is the module's
        self._pool: Pool | None = Pool.of(client)  # until close()
        self._spec = _SPECS[style].format(axis=cuts[1] or cuts[2])
        if self.bias is not None and self.dtype != torch.float32:
            self._spec += ":f32"
        self._key = new_name("torch")  # of this module, for the operator
        _layers[self._key] = self

    @classmethod
    def from_linear(cls, linear: torch.nn.Linear, client: Client, style: str = "column",
                    devices: int | Iterable[int] | None = None, *, name: str | None = None,
                    dtype: torch.dtype | None = None) -> TensorParallelLinear:
        """Puts the weight of `linear` on devices, and returns the layer that uses it. close() deletes it.

        style: "column" or "row".
        devices: their number, from rank 0 on, or their ranks; None: all of the world.
        name: of the weight's tensor; None: a new one.
        dtype: float32, bfloat16 or float16, to which the weight is converted; None: its own, which must be one of these.
        Errors: those of Client.put.
        """
        if style not in _SPECS:
            raise errors.InvalidArgument(f'style is {style!r}; use "column" or "row"')
        if not isinstance(linear, torch.nn.Linear):
            raise errors.InvalidArgument(f"from_linear takes a torch.nn.Linear, not a {type(linear).__name__}")
        weight = linear.weight.detach()
        if dtype is None and weight.dtype not in _TORCH_DTYPES:
            raise errors.InvalidArgument(f"the weight has dtype {weight.dtype}; pass dtype=torch.float32 to convert it "
                                         "(or torch.bfloat16, torch.float16)")
        if dtype is not None:
            weight = weight.to(_checked(dtype))
        if devices is None:
            ranks = []
        elif isinstance(devices, Iterable):
            ranks = arguments.ranks(devices)
        else:
            ranks = list(range(arguments.whole(devices, "devices", 16, least=1)))
        mesh = f"x={len(ranks)}" if ranks else ""
        put = client.put(name or new_name("torch"), weight.t(), _SHARDINGS[style], mesh=mesh, ranks=ranks)
        layer = cls(client, put, linear.bias)
        layer._kept = Kept(client, put.handle)
        return layer

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Returns x W + bias: ... x in_features to ... x out_features.

        Errors: InvalidArgument for an x of another width, dtype or device; Unimplemented if x requires gradients; those of
        Client.run.
        """
        self._check(x)
        return torch.ops.agmm.linear(x, self._key, self.out_features)

    def close(self) -> None:
        """Deletes the weight, if from_linear put it there; and x and y with the last layer of the client.

        The module cannot be used afterwards. May be called again. A module that is dropped leaves its tensors to the next
        call of its client that makes a tensor, or to the client's end.
        """
        self._pool = None
        if self._kept is not None:
            self._kept.drop()
            self._kept = None
        self._client._sweep()

    def __reduce__(self) -> NoReturn:
        raise TypeError("a TensorParallelLinear cannot be copied or pickled, because its weight is on devices; copy or save the "
                        "torch.nn.Linear, and make another layer with from_linear")

    def extra_repr(self) -> str:
        return (f"in_features={self.in_features}, out_features={self.out_features}, bias={self.bias is not None}, "
                f"style={self.style!r}, dtype={self.dtype}, ranks={list(self._weight.ranks)}, name={self.name!r}")

    def _check(self, x: torch.Tensor) -> None:
        if x.dim() == 0 or x.shape[-1] != self.in_features:
            raise errors.InvalidArgument(f"x has shape {tuple(x.shape)}; its last dimension must be {self.in_features}")
        if x.device.type != "cpu":
            raise errors.InvalidArgument(f"x is on {x.device}; give x.cpu(), because agmm reads host memory")
        if x.dtype != self.dtype:
            raise errors.InvalidArgument(f"x has dtype {x.dtype}, and the weight {self.dtype}; give x.to({self.dtype})")
        if torch.is_grad_enabled() and x.requires_grad:
            raise errors.Unimplemented("TensorParallelLinear has no gradient, and x requires one; call it under "
                                       "torch.no_grad(), or give x.detach()")

    def _multiply(self, x: torch.Tensor) -> torch.Tensor:
        """x: rows x in_features."""
        rows = x.shape[0]
        half = self.dtype != torch.float32
        y = torch.empty(rows, self.out_features, dtype=torch.float32 if self.bias is not None else self.dtype)
        if rows > 0:
            self._run(arrays.matrix_of(x), arrays.matrix_of(y))
        if self.bias is not None:
            y += self.bias
        return y.to(self.dtype) if half else y

    def _run(self, x: np.ndarray[Any, Any], y: np.ndarray[Any, Any]) -> None:
        pool = self._pool
        if pool is None:
            raise errors.FailedPrecondition(f"the layer of weight {self.name!r} is closed; make another one")
        weight = self._weight
        shape = Shape(self._spec, len(x), self.in_features, weight.dtype, self.out_features, weight.mesh, weight.ranks)
        self.last, self.mapped = pool.multiply(shape, weight, x, y)


_client: Client | None = None
_clients: weakref.WeakValueDictionary[int, Client] = weakref.WeakValueDictionary()  # of the operator, by their numbers


def set_client(client: Client | None) -> None:
    """Sets the client of the operator agmm::matmul. None stands for the process's own, as for agmm.matmul."""
    global _client
    _client = client


@torch.compiler.assume_constant_result
def _key_of(client: Client) -> int:
    shared.check_client(client)
    _clients[client._number] = client
    return client._number


def matmul(a: torch.Tensor, b: torch.Tensor, spec: str = "A[M_x, K] * B[K, N_x] -> C[M, N_x]", *,
           client: Client | None = None) -> torch.Tensor:
    """Returns the product of two matrices on the CPU, by the operator agmm::matmul, which torch.compile traces.

    a, b: M x K and K x N, of one dtype. spec: see agmm.matmul; C has the dtype of A, or the one after a colon.
    client: None stands for that of set_client(), or else the process's own. Compiled code does not keep it alive.
    Errors: those of agmm.matmul; Unimplemented if an operand requires gradients.
    """
    if torch.is_grad_enabled() and (a.requires_grad or b.requires_grad):
        raise errors.Unimplemented("agmm::matmul has no gradient, and an operand requires one; call it under "
                                   "torch.no_grad(), or detach the operand")
    return torch.ops.agmm.matmul(a, b, spec, 0 if client is None else _key_of(client))


@library.custom_op("agmm::matmul", mutates_args=(), device_types="cpu")
def _matmul(a: torch.Tensor, b: torch.Tensor, spec: str, client: int = 0) -> torch.Tensor:
    used = _client if client == 0 else _clients.get(client)
    if client != 0 and used is None:
        raise errors.FailedPrecondition("the client of this compiled code is gone; keep it as long as the code runs")
    c = _empty_product(a, b, spec)
    shared.matmul(a, b, spec=spec, out=c, client=used)
    return c


@_matmul.register_fake
def _(a: torch.Tensor, b: torch.Tensor, spec: str, client: int = 0) -> torch.Tensor:
    return _empty_product(a, b, spec)


@library.custom_op("agmm::linear", mutates_args=(), device_types="cpu")
def _linear(x: torch.Tensor, key: str, out_features: int) -> torch.Tensor:
    layer = _layers.get(key)
    if layer is None:
        raise errors.FailedPrecondition("the TensorParallelLinear of this compiled code is gone; keep the module")
    return layer._multiply(x.reshape(-1, x.shape[-1])).reshape(*x.shape[:-1], out_features)


@_linear.register_fake
def _(x: torch.Tensor, key: str, out_features: int) -> torch.Tensor:
    return x.new_empty(*x.shape[:-1], out_features)


def _empty_product(a: torch.Tensor, b: torch.Tensor, spec: str) -> torch.Tensor:
    if a.dim() != 2 or b.dim() != 2 or a.shape[1] != b.shape[0]:
        raise errors.InvalidArgument(f"shapes {tuple(a.shape)} and {tuple(b.shape)} have no product; give M x K and K x N")
    dtype = result_dtype_of(spec)
    return a.new_empty(a.shape[0], b.shape[1], dtype=a.dtype if dtype is None else _TORCH_DTYPES[DTYPES.index(dtype)])


def _checked(dtype: torch.dtype) -> torch.dtype:
    if dtype not in _TORCH_DTYPES:
        raise errors.InvalidArgument(f"dtype is {dtype}; use {', '.join(map(str, _TORCH_DTYPES))}")
    return dtype
