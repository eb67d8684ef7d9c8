"""Modules of torch and of Relax that the doors do not take, or take in part."""

from __future__ import annotations

import torch
import tvm
from torch import nn
from tvm import relax
from tvm.script import ir as I
from tvm.script import relax as R


class Two(nn.Module):
    def forward(self, a, b=None):
        return a + 1 if b is None else a + b


class Nested(nn.Module):
    def forward(self, hx):
        return hx[0] + hx[1]


class Returns(nn.Module):
    def __init__(self, value):
        super().__init__()
        self.value = value

    def forward(self, x):
        return x, self.value


class Fixed(nn.Module):
    def forward(self, x):
        return x.reshape(2, 3) * 2


class Writes(nn.Module):
    def forward(self, x):
        x.add_(1)
        return x


class Branches(nn.Module):
    def forward(self, x):
        return x if x.sum() > 0 else -x


class Raises(nn.Module):
    def forward(self, x):
        raise ValueError("no such thing")


class Numpy(nn.Module):
    def forward(self, x):
        return torch.from_numpy(x.numpy() + 1)


class Odd(nn.Module):
    def forward(self, x):
        return torch.linalg.svd(x)[1]


class Item(nn.Module):
    def forward(self, x):
        return torch.cat([x] * int(x.sum().item()))


class Sparse(nn.Module):
    def forward(self, x):
        return x.to_sparse()


class SparseP(nn.Module):
    def __init__(self):
        super().__init__()
        self.register_buffer("w", torch.ones(3, 2).to_sparse())

    def forward(self, x):
        return x @ self.w.to_dense()


@I.ir_module
class Mod:
    @R.function
    def main(x: R.Tensor(("n", 4), "float32"), w: R.Tensor((4, 2), "float32")) -> R.Tensor(("n", 2), "float32"):
        gv = R.matmul(x, w)
        return gv


@I.ir_module
class TwoF:
    @R.function
    def a(x: R.Tensor((4,), "float32")) -> R.Tensor((4,), "float32"):
        return x

    @R.function
    def b(x: R.Tensor((4,), "float32")) -> R.Tensor((4,), "float32"):
        return x


def module(*types, ret=None):
    vs = [relax.Var(f"x{i}", ty) for i, ty in enumerate(types)]
    bb = relax.BlockBuilder()
    with bb.function("main", vs):
        bb.emit_func_output(vs[0])
    return bb.get()


def illformed():
    x = relax.Var("x", relax.TensorType((2,), "float32"))
    y = relax.Var("y", relax.TensorType((2,), "float32"))
    return tvm.IRModule(
        {
            "main": relax.Function([x], relax.SeqExpr([], y), relax.TensorType((2,), "float32")).with_attr(
                "global_symbol", "main"
            )
        }
    )
