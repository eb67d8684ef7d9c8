"""Operators that move data become kernels, chains of them single ones, and give what TVM's own code gives."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
import tvm
from tvm import relax

from autocast.kernels import detect_target
from autocast.kernels.matching.layout.rule import lower_layout
from autocast.kernels.specs.layout import Lookup
from autocast.kernels.targets import backend_of
from autocast.kernels.targets.cpu.layout.lookup import lookup
from tests.kernels.compiling import compile_kernels
from tests.kernels.modules import NUMPY, module, operators, random
from tests.kernels.targets.cpu.products.cases import CPUS, runs_here, target_of

op = relax.op
f32, bf16 = "float32", "bfloat16"


def _swapped(x: relax.Expr) -> relax.Expr:
    split = op.reshape(op.permute_dims(x, [0, 2, 1]), (8, 4, 4, 36))
    return op.reshape(op.permute_dims(split, [0, 2, 1, 3]), (16, 288))


#: What is computed, of which arguments, and by which kernels. Run-time sizes are 5 (n) and 33 (m).
_CASES: dict[str, tuple[Callable[..., relax.Expr], tuple, list[str]]] = {
    "a cast and a view before": (
        lambda x: op.permute_dims(op.reshape(op.astype(x, bf16), (8, 16, 12, 4)), [0, 2, 1, 3]),
        (((8, 16, 48), f32),),
        ["permute_dims0_8x12x16x4_bfloat16"],
    ),
    "a cast after": (
        lambda x: op.astype(op.permute_dims(x, [1, 0]), "float16"),
        (((33, 40), f32),),
        ["astype0_40x33_float16"],
    ),
    "views of views": (_swapped, (((8, 36, 16), f32),), ["permute_dims0_8x4x4x36_float32", "relax.reshape"]),
    "parts joined": (
        lambda x: op.concat([x, op.flip(x, 1), op.strided_slice(x, [0, 1], [1, 0], [100, 33], [2, 1])], 0),
        (((9, 33), f32),),
        ["concat0_22x33_float32"],
    ),
    "run-time sizes joined": (
        lambda x, y: op.concat([x, y, x], 1),
        ((("n", "m"), f32), (("n", 40), f32)),
        ["concat0_d0xd1_float32"],
    ),
    "single elements joined to others": (
        lambda x: op.concat([op.strided_slice(x, [0], [7], [8]), x, op.strided_slice(x, [0], [9], [10])], 0),
        (((300,), f32),),
        ["concat0_302_float32"],
    ),
    "single elements joined to a run-time number of them": (
        lambda x, y: op.concat([x, y], 0),
        ((("n", 1), f32), ((1, 1), f32)),
        ["concat0_d0x1_float32"],
    ),
    "stacked": (
        lambda x: op.stack([x, op.strided_slice(x, [1], [-33], [100])], 1),
        (((30, 33), "float16"),),
        ["stack0_30x2x33_float16"],
    ),
    "tiled": (lambda x: op.tile(x, (3, 2, 2)), (((9, 33), "int8"),), ["tile0_3x18x66_int8"]),
    "repeated": (lambda x: op.repeat(x, 3, 1), (((9, 33), "float64"),), ["repeat0_9x99_float64"]),
    "repeated flat": (lambda x: op.repeat(x, 3), (((9, 33), "int64"),), ["repeat0_891_int64"]),
    "repeated flat, permuted": (
        lambda x: op.repeat(op.permute_dims(x, [2, 0, 1]), 3),
        (((9, 3, 11), f32),),
        ["repeat0_891_float32"],
    ),
    "repeated flat, a part, backwards": (
        lambda x: op.repeat(op.flip(op.strided_slice(x, [1], [2], [30], [3]), 0), 2),
        (((30, 33), f32),),
        ["repeat0_600_float32"],
    ),
    "run-time sizes repeated flat, permuted": (
        lambda x: op.repeat(op.permute_dims(x, [1, 0, 2]), 2),
        ((("n", "m", 12), bf16),),
        ["repeat0_d0_bfloat16"],
    ),
    "padded": (
        lambda x: op.nn.pad(x, [0, 0, 1, 2, 3, 4], pad_value=1.5),
        (((9, 33, 12), bf16),),
        ["pad0_9x36x19_bfloat16"],
    ),
    "run-time sizes padded": (
        lambda x: op.nn.pad(op.permute_dims(x, [0, 2, 1]), [0, 0, 1, 2, 3, 4], pad_value=-1.5),
        ((("n", "m", 12), f32),),
        ["pad0_d0x15xd1_float32"],
    ),
    "filled": (lambda x: op.full((30, 40), relax.const(2.5, bf16), bf16), (((9,), f32),), ["full0_30x40_bfloat16"]),
    "broadcast": (lambda x: op.broadcast_to(x, (40, 9, 33)), (((9, 1), f32),), ["broadcast_to0_40x9x33_float32"]),
    "a part": (lambda x: op.split(x, [5, 20], 1)[1], (((9, 33, 3), f32),), ["part0_9x15x3_float32"]),
    "a part, permuted": (
        lambda x: op.permute_dims(op.split(x, 3, 2)[2], [0, 2, 1]),
        (((9, 33, 30), bf16),),
        ["permute_dims0_9x10x33_bfloat16"],
    ),
    "run-time sizes permuted": (
        lambda x: op.permute_dims(x, [2, 1, 0]),
        ((("n", "m", 17), bf16),),
        ["permute_dims0_17xd0xd1_bfloat16"],
    ),
    "cut backwards": (
        lambda x: op.strided_slice(x, [1], [-1], [-100], [-2]),
        (((30, 33), "int64"),),
        ["strided_slice0_30x17_int64"],
    ),
    "small": (lambda x: op.permute_dims(x, [1, 0]), (((3, 5), f32),), ["relax.permute_dims"]),
    "looked up": (
        lambda x: op.take(x, relax.const(np.arange(40).reshape(8, 5) * 3 % 30, "int64"), axis=0),
        (((30, 33), bf16),),
        ["take0_8x5x33_bfloat16"],
    ),
    "looked up after a cast": (
        lambda x: op.take(op.astype(x, bf16), relax.const(np.arange(40), "int32"), axis=1, mode="clip"),
        (((9, 33, 4), f32),),
        ["take0_9x40x4_bfloat16"],
    ),
    "looked up element by element": (
        lambda x: op.take(x, relax.const(np.arange(-40, 40), "int64"), axis=1, mode="wrap"),
        (((9, 33), f32),),
        ["take0_9x80_float32"],
    ),
}


def _outputs(mod: tvm.IRModule, arrays: list[np.ndarray]) -> np.ndarray:
    machine = relax.VirtualMachine(tvm.compile(mod, target=detect_target()), tvm.cpu())
    return machine["main"](*[tvm.runtime.tensor(array) for array in arrays]).numpy()


@pytest.mark.parametrize("name", _CASES)
def test_moves_become_kernels_that_agree_with_tvm(name: str) -> None:
    body, arguments, expected = _CASES[name]
    mod = module(body, *arguments)
    lowered = lower_layout(mod, backend_of(detect_target()))
    assert operators(lowered) == expected
    arrays = []
    for seed, (shape, dtype) in enumerate(arguments):
        sizes = [{"n": 5, "m": 33}.get(dim, dim) for dim in shape]
        arrays.append((random(sizes, f32, seed) * 50).astype(NUMPY.get(dtype, dtype)))
    got, wanted = _outputs(lowered, arrays), _outputs(relax.transform.LegalizeOps()(mod), arrays)
    assert got.dtype == wanted.dtype and np.array_equal(got, wanted)


def test_a_view_that_others_read_is_moved_once() -> None:
    def body(x: relax.Expr) -> relax.Expr:
        turned = op.permute_dims(x, [1, 0])
        return op.concat([turned, op.flip(turned, 0)], 0)

    calls = operators(lower_layout(module(body, ((40, 50), f32)), backend_of(detect_target())))
    assert calls == ["permute_dims0_50x40_float32", "concat1_100x40_float32"]


def test_casts_are_left_to_what_computes(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture) -> None:
    monkeypatch.setenv("AUTOCAST_DEBUG", "4")
    mod = module(lambda x: op.exp(op.astype(op.permute_dims(x, [1, 0]), f32)), ((40, 50), bf16))
    assert operators(lower_layout(mod, backend_of(detect_target()))) == [
        "permute_dims0_50x40_bfloat16",
        "relax.astype",
        "relax.exp",
    ]
    message = capsys.readouterr().err
    assert "layout declines" in message and "widens by itself" in message and "layout takes" in message


@pytest.mark.parametrize("cpu", [cpu for cpu in CPUS if runs_here(cpu)])
def test_rows_are_looked_up_on_every_instruction_set(cpu: str) -> None:
    target = target_of(cpu)
    numbers = np.array([[3, 0], [6, 6], [1, 5]], "int32")
    for storage, result, after in ((f32, f32, 130), (f32, bf16, 37), ("float16", f32, 1), ("bool", "bool", 3)):
        spec = Lookup(((2, 7, after), storage), ((3, 2), "int32"), ((2, 3, 2, after), result), 1, "fast")
        kernel = compile_kernels({"f": lookup(spec, target, "f")}, target)["f"]
        table = random((2, 7, after), f32).astype(storage)
        out = tvm.runtime.tensor(np.full((2, 3, 2, after), 99).astype(NUMPY.get(result, result)))
        kernel(tvm.runtime.tensor(table), tvm.runtime.tensor(numbers), out)
        assert np.array_equal(out.numpy(), table[:, numbers].astype(NUMPY.get(result, result)))
