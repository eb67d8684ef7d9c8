"""Kernels that move data against torch: every form, dtype, instruction set and size, and nothing written beyond."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence

import pytest
import torch
import tvm

from autocast.kernels.specs.layout import Axis, Move, Piece, interleaved, merged
from autocast.kernels.specs.sizes import dimension, strides_of
from autocast.kernels.targets.cpu.layout.kernel import move
from autocast.kernels.targets.cpu.vector import streaming
from tests.kernels.compiling import assembly_of, compile_kernels
from tests.kernels.targets.cpu.products.cases import CPUS, runs_here, target_of

#: Sizes around those of squares, with neighbours that merge, and with few and odd elements.
SHAPES = (
    (5,),
    (37, 45),
    (3, 64, 50),
    (33, 16),
    (2, 7, 3, 40),
    (100, 3),
    (1, 70, 1, 33),
    (2, 2, 19, 17, 3),
    (130, 129),
    (2, 48, 3, 8),
)


def transposition(shape: Sequence, axes: Sequence[int], storage: str, result: str) -> Move:
    """The move that permutes the axes of a tensor; named dimensions are run-time ones."""
    extents = [dimension(dim) for dim in shape]
    reads, writes = strides_of(extents), strides_of([extents[axis] for axis in axes])
    loops = tuple(Axis(extents[axis], reads[axis], write) for axis, write in zip(axes, writes, strict=True))
    out = tuple(shape[axis] for axis in axes)
    return Move(((tuple(shape), storage),), (Piece(0, loops),), (out, result))


def numbers(shape: Sequence[int], dtype: str) -> torch.Tensor:
    torch.manual_seed(0)
    return (torch.randn(*shape) * 50).to(getattr(torch, dtype))


def results(specs: Sequence[Move], cpu: str, *arguments: Sequence[torch.Tensor]) -> list[torch.Tensor]:
    """What kernels, compiled together, make of their arguments.

    The bits of results are all ones before, and so are 64 bytes after them, which must stay so.
    """
    target = target_of(cpu)
    functions = {f"f{i}": move(spec, target, f"f{i}") for i, spec in enumerate(specs)}
    library = compile_kernels(functions, target)
    found = []
    for i, (spec, tensors) in enumerate(zip(specs, arguments, strict=True)):
        named = {
            dim: size
            for (shape, _), tensor in zip(spec.arguments, tensors, strict=True)
            for dim, size in zip(shape, tensor.shape, strict=True)
        }
        shape = [named.get(dim, dim) for dim in spec.out[0]]
        dtype = getattr(torch, spec.out[1])
        memory = torch.full((math.prod(shape) * dtype.itemsize + 64,), 255, dtype=torch.uint8)
        out = memory[:-64].view(dtype).reshape(shape)
        library[f"f{i}"](*[tvm.runtime.from_dlpack(tensor) for tensor in (*tensors, out)])
        assert (memory[-64:] == 255).all(), spec
        found.append(out)
    return found


def check_transpositions(shapes: Sequence, cpu: str, storage: str, result: str, names: str = "") -> None:
    cases = [(shape, axes) for shape in shapes for axes in _orders(len(shape))]
    specs, arguments = [], []
    for shape, axes in cases:
        dims = [f"d{i}" if str(i) in names else dim for i, dim in enumerate(shape)]
        specs.append(transposition(dims, axes, storage, result))
        arguments.append([numbers(shape, storage)])
    for (shape, axes), (x,), got in zip(cases, arguments, results(specs, cpu, *arguments), strict=True):
        assert torch.equal(got, x.permute(axes).to(got.dtype)), (shape, axes)


def _orders(rank: int) -> list[tuple[int, ...]]:
    """Some orders of axes: none changed, all reversed, and the middle of what remains."""
    every = list(itertools.permutations(range(rank)))
    return sorted({every[0], every[-1], every[len(every) // 2], every[len(every) // 3]})


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "int8", "float64", "bool", "int64"])
def test_permutations_of_any_order(dtype: str) -> None:
    check_transpositions(SHAPES, "cooperlake" if runs_here("cooperlake") else "x86-64", dtype, dtype)


@pytest.mark.parametrize(("storage", "result"), list(itertools.permutations(("float32", "bfloat16", "float16"), 2)))
def test_permutations_convert_on_the_way(storage: str, result: str) -> None:
    check_transpositions(SHAPES[1:7], "cooperlake" if runs_here("cooperlake") else "x86-64", storage, result)


@pytest.mark.parametrize("cpu", [cpu for cpu in CPUS if runs_here(cpu)])
@pytest.mark.parametrize(
    ("storage", "result"), [("float32", "float32"), ("float16", "float16"), ("float32", "bfloat16"), ("int8", "int8")]
)
def test_every_instruction_set_moves_alike(cpu: str, storage: str, result: str) -> None:
    check_transpositions(((37, 45), (3, 9, 5, 70)), cpu, storage, result)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_sizes_may_be_known_at_run_time_only(dtype: str) -> None:
    check_transpositions(((37, 45), (3, 64, 50), (2, 7, 3, 40)), "x86-64-v3", dtype, dtype, names="0")
    check_transpositions(((37, 145),), "x86-64-v3", dtype, "float32", names="01")
    check_transpositions(((1, 1, 1), (2, 3, 4)), "x86-64-v3", dtype, dtype, names="012")


@pytest.mark.skipif(not runs_here("skylake-avx512"), reason="only AVX-512 stores whole lines from one register")
@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float64"])
def test_large_results_are_stored_past_the_caches(dtype: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(streaming, "FAR_BYTES", 0)
    check_transpositions(((192, 96), (3, 64, 80), (64, 2, 33)), "skylake-avx512", dtype, dtype)
    target = target_of("skylake-avx512")
    function = move(transposition((192, 96), (1, 0), dtype, dtype), target, "f")
    assert "vmovnt" in assembly_of({"f": function}, target)


@pytest.mark.parametrize("cpu", [cpu for cpu in CPUS if runs_here(cpu)])
@pytest.mark.parametrize("result", ["float32", "bfloat16"])
@pytest.mark.parametrize(("width", "begin"), [(64, 0), (64, 7), (100, 3), (9000, 64)])
def test_rows_are_stored_past_the_caches(
    width: int, begin: int, result: str, cpu: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(streaming, "FAR_BYTES", 0)
    read, write = width + 80, 2 * width
    pieces = (
        Piece(0, (Axis(5, read, write), Axis(width, 1, 1)), begin, 0),
        Piece(1, (Axis(5, read, write), Axis(width, 1, 1)), begin, width),
    )
    shape = (5, read)
    x = [numbers(shape, "float32"), numbers(shape, "float32")]
    (got,) = results([Move(((shape, "float32"),) * 2, pieces, ((5, write), result))], cpu, x)
    expected = torch.cat([tensor[:, begin : begin + width] for tensor in x], 1)
    assert torch.equal(got, expected.to(got.dtype))


def test_contiguous_axes_are_merged() -> None:
    piece = transposition((8, 128, 12, 64), (0, 2, 1, 3), "float32", "float32").pieces[0]
    assert [axis.extent for axis in merged(piece).axes] == [8, 12, 128, 64]
    piece = transposition((2, 3, 4, 5), (2, 3, 0, 1), "float32", "float32").pieces[0]
    assert merged(piece).axes == (Axis(20, 1, 6), Axis(6, 20, 1))
    piece = transposition(("n", 3, 4), (0, 1, 2), "float32", "float32").pieces[0]
    assert merged(piece).axes == (Axis(dimension("n") * 12, 1, 1),)


def test_rows_are_read_in_runs_too() -> None:
    heads = transposition((8, 128, 12, 64), (0, 2, 1, 3), "float32", "float32").pieces[0]
    loops = interleaved(heads.axes[:-1])
    assert [(axis.extent, axis.read) for axis in loops] == [(8, 98304), (8, 12288), (12, 64), (16, 768)]
    assert interleaved(loops[:2]) == loops[:2]


def test_pieces_fill_repeat_and_reverse() -> None:
    fill = Piece(None, (Axis(3, 0, 40), Axis(10, 0, 1)), 0, 0, bits=0x4049)
    repeat = Piece(0, (Axis(3, 1, 40), Axis(10, 0, 1)), 5, 10)
    reverse = Piece(0, (Axis(3, 10, 40), Axis(10, -1, 1)), 9, 20)
    every_third = Piece(0, (Axis(3, 10, 40), Axis(10, 3, 1)), 0, 30)
    spec = Move((((100,), "float16"),), (fill, repeat, reverse, every_third), ((3, 40), "float16"))
    x = numbers((100,), "float16")
    for cpu in (cpu for cpu in CPUS if runs_here(cpu)):
        (got,) = results([spec], cpu, [x])
        assert (got[:, :10].view(torch.int16) == 0x4049).all()
        assert torch.equal(got[:, 10:20], x[5:8, None].expand(3, 10))
        assert torch.equal(got[:, 20:30], torch.stack([x[10 * i : 10 * i + 10].flip(0) for i in range(3)]))
        assert torch.equal(got[:, 30:], torch.stack([x[10 * i : 10 * i + 30 : 3] for i in range(3)]))


@pytest.mark.parametrize("threads", [1, 2])
def test_shares_make_up_the_whole(threads: int) -> None:
    config = tvm.get_global_func("runtime.config_threadpool")
    config(1, threads)
    try:
        shapes = ((4, 64, 31, 33), (300000,), (2, 90000), (700, 129))
        check_transpositions(shapes, "x86-64-v3", "bfloat16", "bfloat16")
        check_transpositions(shapes, "x86-64-v3", "bfloat16", "float32")
        every_second = Piece(0, (Axis(150000, 2, 1),), 1)
        x = numbers((300000,), "float32")
        (got,) = results([Move((((300000,), "float32"),), (every_second,), ((150000,), "float32"))], "x86-64-v3", [x])
        assert torch.equal(got, x[1::2])
    finally:
        config(1, 0)
