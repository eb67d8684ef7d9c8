"""Small models whose figures can be worked out by hand."""

from __future__ import annotations

import numpy as np
import tvm
from tvm import tirx
from tvm.script import ir as I
from tvm.script import relax as R
from tvm.script import tirx as T

from autocast.model import Model

#: Elements of one tensor of `steps()`: 1 MiB of float32.
ROWS, COLUMNS = 1024, 256


def steps() -> Model:
    """Three opaque kernels of 1 MiB tensors, then one with 2 MiB of workspace that also reads the first result."""

    @I.ir_module
    class Steps:
        @T.prim_func(private=True, s_tir=True)
        def step(
            x: T.Buffer((T.int64(1024), T.int64(256)), "float32"), y: T.Buffer((T.int64(1024), T.int64(256)), "float32")
        ):
            T.func_attr({"tirx.noalias": True, "op_pattern": 8, "autocast.scheduled": True, "autocast.flops": 262144})
            for i, j in T.grid(1024, 256):
                with T.sblock("step"):
                    vi, vj = T.axis.remap("SS", [i, j])
                    y[vi, vj] = x[vi, vj] + T.float32(1)

        @T.prim_func(private=True, s_tir=True)
        def join(
            a: T.Buffer((T.int64(1024), T.int64(256)), "float32"),
            b: T.Buffer((T.int64(1024), T.int64(256)), "float32"),
            y: T.Buffer((T.int64(1024), T.int64(256)), "float32"),
        ):
            T.func_attr({"tirx.noalias": True, "op_pattern": 8, "autocast.scheduled": True})
            both = T.sblock_alloc_buffer((T.int64(1024), T.int64(512)))
            for i, j in T.grid(1024, 256):
                with T.sblock("gather"):
                    vi, vj = T.axis.remap("SS", [i, j])
                    both[vi, vj] = a[vi, vj]
                    both[vi, vj + 256] = b[vi, vj]
            for i, j in T.grid(1024, 256):
                with T.sblock("add"):
                    vi, vj = T.axis.remap("SS", [i, j])
                    y[vi, vj] = both[vi, vj] + both[vi, 511 - vj]

        @R.function
        def main(x: R.Tensor((1024, 256), "float32")) -> R.Tensor((1024, 256), "float32"):
            R.func_attr({"num_input": 1})
            cls = Steps
            with R.dataflow():
                a = R.call_tir(cls.step, (x,), out_ty=R.Tensor((1024, 256), "float32"))
                b = R.call_tir(cls.step, (a,), out_ty=R.Tensor((1024, 256), "float32"))
                c = R.call_tir(cls.step, (b,), out_ty=R.Tensor((1024, 256), "float32"))
                d = R.call_tir(cls.join, (c, a), out_ty=R.Tensor((1024, 256), "float32"))
                R.output(d)
            return d

    return Model(Steps)


def dense(bound: int = 64) -> Model:
    """`(relu(x @ w), x @ w + n)` for x of shape (rows, 16): rows is symbolic, `bound` at most; w has shape (16, 32)."""

    @I.ir_module
    class Dense:
        @R.function
        def main(x: R.Tensor(("rows", 16), "float32"), n: R.Tensor((), "float32"), w: R.Tensor((16, 32), "float32")):
            R.func_attr({"num_input": 2})
            with R.dataflow():
                y = R.matmul(x, w)
                positive = R.nn.relu(y)
                moved = R.add(y, n)
                R.output(positive, moved)
            return (positive, moved)

    main = Dense["main"].with_attr("tir_var_upper_bound", {"rows": bound})
    weight = np.random.default_rng(0).standard_normal((16, 32)).astype("float32")
    return Model(tvm.IRModule({"main": main}), {"w": tvm.runtime.tensor(weight)})


def square(dtype: str) -> Model:
    """`x * x` for x of shape (3, 5)."""

    @I.ir_module
    class Square:
        @R.function
        def main(x: R.Tensor((3, 5), dtype)):
            R.func_attr({"num_input": 1})
            with R.dataflow():
                y = R.multiply(x, x)
                R.output(y)
            return y

    return Model(Square)


def allocating() -> Model:
    """A copy of `x`, in memory that the module allocates by itself."""
    n = tirx.Var("n", "int64")

    @I.ir_module
    class Allocating:
        @T.prim_func(private=True, s_tir=True)
        def copy(x: T.handle, y: T.handle):
            size = T.int64()
            a, b = T.match_buffer(x, (size,)), T.match_buffer(y, (size,))
            for i in range(size):
                with T.sblock("copy"):
                    vi = T.axis.spatial(size, i)
                    b[vi] = a[vi]

        @R.function(pure=False)
        def main(x: R.Tensor((n,), "float32")) -> R.Tensor((n,), "float32"):
            R.func_attr({"num_input": 1})
            cls = Allocating
            storage = R.memory.alloc_storage((n * 4,), 0, R.str("global"), R.dtype("uint8"))
            y = R.memory.alloc_tensor(storage, 0, R.shape([n]), R.dtype("float32"), 0)
            cls.copy(x, y)
            return y

    return Model(Allocating)
