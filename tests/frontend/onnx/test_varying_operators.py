"""Operators on sizes that vary, at sizes small and large, beside onnxruntime."""

# ruff: noqa: E402 (what the imports need may not be installed)

from __future__ import annotations

import itertools
from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest

onnx = pytest.importorskip("onnx", reason="the extra `onnx` is not installed; make test installs it")
onnxruntime = pytest.importorskip("onnxruntime", reason="onnxruntime is not installed; make test installs it")

import autocast
from autocast.errors import InputError
from tests.frontend.onnx.test_sizes import model_of, random


def compared(text: str, *calls: tuple[Any, ...]) -> None:
    """A model's results for the inputs of each call."""
    model = model_of(f"main {text}")
    imported = autocast.from_onnx(model)
    session = onnxruntime.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    names = [value.name for value in model.graph.input]
    for inputs in calls:
        expected = session.run(None, dict(zip(names, inputs, strict=True)))
        outputs = imported(*inputs)
        outputs = outputs if isinstance(outputs, tuple) else (outputs,)
        for result, got, wanted in zip(model.graph.output, outputs, expected, strict=True):
            assert got.dtype == wanted.dtype
            np.testing.assert_allclose(got, wanted, rtol=1e-5, atol=1e-6, err_msg=result.name)


def several(inputs: str, kind: str, nodes: Mapping[str, str], constants: str = "") -> str:
    """A model of nodes whose results, of one type, have the names of the nodes."""
    types = ", ".join(f"{kind} {name}" for name in nodes)
    written = " ".join(f"{name} = {node}" for name, node in nodes.items())
    return f"({inputs}) => ({types}) <{constants}> {{ {written} }}"


#: Start, end and step of slices.
_SLICES = [
    *[(-5, 2**62, 1), (-5, -4, 1), (-5, -1, 1), (-9, -8, 1), (-4, 6, 2), (2, 5, 1), (5, 2, 1), (8, 9, 1)],
    *[(5, -7, -1), (2**62, -(2**62), -1), (-2, -9, -2)],
]


@pytest.mark.parametrize("size", ["N", "3", "7"])
def test_slices_that_begin_or_end_beyond_an_axis_are_cut_there(size: str) -> None:
    constants, nodes = ["int64[1] axis = {0}"], {}
    for at, numbers in enumerate(_SLICES):
        constants += [f"int64[1] {name}{at} = {{{number}}}" for name, number in zip("sek", numbers, strict=True)]
        nodes[f"slice{at}"] = f"Slice (x, s{at}, e{at}, axis, k{at})"
    text = several(f"float[{size}] x", "float[?]", nodes, ", ".join(constants))
    compared(text, *[(random(rows),) for rows in ((1, 3, 4, 5, 7, 12) if size == "N" else (int(size),))])


def test_a_slice_that_ends_before_it_begins_is_as_long_as_nothing() -> None:
    text = """(float[N, 2] x) => (int64[2] size, float[N, 2] y) <int64[1] zero = {0}, int64[1] most = {-3},
        float two = {2}> {
        none = Slice (x, most, zero, zero)
        size = Shape (none)
        flat = Reshape (none, size)
        twice = Mul (flat, two)
        y = Concat <axis = 0> (twice, x)
    }"""
    compared(text, (random(2, 2),), (random(5, 2),))


def test_the_attributes_of_an_old_slice_say_the_same() -> None:
    model = onnx.parser.parse_model(
        '<ir_version: 4, opset_import: ["" : 9]> main (float[N, 6] x) => (float[M, K] y) '
        "{ y = Slice <starts = [-3, 1], ends = [9223372036854775807, -1]> (x) }"
    )
    imported = autocast.from_onnx(model)
    for rows in (2, 5):
        np.testing.assert_array_equal(imported(x := random(rows, 6)), x[-3:, 1:-1])


def test_sizes_that_nobody_can_compare_before_are_compared_by_a_call() -> None:
    text = """
        (float[A, B] x) => (bool[1] same, bool[1] divides, int64[1] parts, int64[1] chosen)
            <int64[1] zero = {0}, int64[1] one = {1}> {
            a = Shape <start = 0, end = 1> (x)
            b = Shape <start = 1, end = 2> (x)
            same = Equal (a, b)
            rest = Mod (a, b)
            divides = Equal (rest, zero)
            parts = Div (a, b)
            more = Greater (a, b)
            chosen = Where (more, parts, one)
        }
    """
    compared(text, *[(random(*sizes),) for sizes in ((4, 4), (4, 2), (5, 2), (2, 4))])


def test_products_of_sizes_in_another_order_are_the_same_size() -> None:
    """As the rows of a mixture of experts are counted: TVM compares those of a `ScatterND` as they are written."""
    text = """
        (int64[A, B] x) => (int64[M] y) <int64 zero = {0}, int64 one = {1}, int64[1] axis = {1}, int64[1] all = {-1}> {
            shape = Shape (x)
            b = Gather (shape, one)
            a = Gather (shape, zero)
            count = Mul (b, a)
            numbers = Range (zero, count, one)
            flat = Reshape (x, all)
            places = Unsqueeze (flat, axis)
            y = ScatterND (numbers, places, numbers)
        }
    """
    compared(text, *[(np.arange(a * b)[::-1].reshape(a, b).copy(),) for a, b in ((2, 3), (1, 4))])


@pytest.mark.parametrize("node", ["Conv <{}> (x, w)", "MaxPool <{}, kernel_shape = [3, 3]> (x)"])
def test_windows_are_padded_as_sizes_need(node: str) -> None:
    nodes = {
        f"{mode}_{stride}": node.format(f'auto_pad = "{mode}", strides = [{stride}, {stride}]')
        for mode, stride in (("SAME_UPPER", 1), ("SAME_UPPER", 3), ("SAME_LOWER", 3), ("VALID", 3))
    }
    weight = ", ".join(f"{number:.3f}" for number in random(2 * 2 * 9).reshape(-1))
    constants = f"float[2, 2, 3, 3] w = {{{weight}}}" if "w" in node else ""
    text = several("float[B, 2, H, W] x", "float[B, 2, ?, ?]", nodes, constants)
    compared(text, *[(random(1, 2, *sizes) - 3,) for sizes in ((3, 3), (4, 5), (6, 7), (8, 10))])


@pytest.mark.parametrize(
    "options", ["ceil_mode = 1", 'auto_pad = "SAME_UPPER"', "pads = [1, 0, 1, 1], storage_order = 1"]
)
def test_places_of_maxima_are_in_the_whole_batch(options: str) -> None:
    text = (
        "(float[B, 3, 7, 6] x) => (float[B, 3, K, L] y, int64[B, 3, K, L] places) "
        f"{{ y, places = MaxPool <kernel_shape = [2, 2], strides = [2, 2], {options}> (x) }}"
    )
    compared(text, *[(random(batch, 3, 7, 6),) for batch in (1, 4)])


def test_columns_of_any_batch_are_added_to_images() -> None:
    text = (
        "(float[B, 12, 16] x) => (float[B, 3, 5, 5] y) <int64[2] sizes = {5, 5}, int64[2] block = {2, 2}> "
        "{ y = Col2Im (x, sizes, block) }"
    )
    compared(text, *[(random(batch, 12, 16),) for batch in (1, 3)])


def test_a_signal_of_any_length_is_transformed() -> None:
    transforms = {"inverse": np.fft.ifft, "onesided": np.fft.rfft, "full": np.fft.fft}
    nodes = {name: f"DFT <axis = 1{'' if name == 'full' else f', {name} = 1'}> (x)" for name in transforms}
    model = onnx.parser.parse_model(
        '<ir_version: 8, opset_import: ["" : 17]> main ' + several("float[B, N, 1] x", "float[B, ?, 2]", nodes)
    )
    imported = autocast.from_onnx(model)
    for batch, length in ((1, 1), (2, 2), (1, 13), (3, 100)):
        x = random(batch, length, 1)
        for (name, transform), got in zip(transforms.items(), imported(x), strict=True):
            expected = transform(x[..., 0].astype("float64"), axis=1)
            wanted = np.stack([expected.real, expected.imag], -1)
            np.testing.assert_allclose(got, wanted, rtol=1e-5, atol=1e-6 * np.abs(wanted).max(), err_msg=name)


def test_frames_of_a_signal_of_any_length_are_transformed() -> None:
    window = ", ".join(f"{number:.3f}" for number in np.hanning(10)[1:-1])
    text = (
        f"(float[B, N, 1] x) => (float[B, M, K, 2] y) <int64 step = {{3}}, float[8] w = {{{window}}}> "
        "{ y = STFT <onesided = 1> (x, step, w) }"
    )
    compared(text, *[(random(*sizes, 1),) for sizes in ((1, 8), (2, 9), (3, 41))])


def test_averages_of_windows_at_an_edge_are_of_what_is_inside() -> None:
    cases = {f"{mode}_{includes}": (mode, includes) for mode in ("SAME_UPPER", "SAME_LOWER") for includes in (0, 1)}
    window = "kernel_shape = [3], strides = [2]"
    nodes = {
        name: f'AveragePool <auto_pad = "{mode}", {window}, count_include_pad = {includes}> (x)'
        for name, (mode, includes) in cases.items()
    }
    imported = autocast.from_onnx(model_of(f"main {several('float[B, 2, N] x', 'float[B, 2, ?]', nodes)}"))
    for size in (3, 4, 5, 8):
        x = random(1, 2, size)
        total = max((-(-size // 2) - 1) * 2 + 3 - size, 0)
        for (name, (mode, includes)), got in zip(cases.items(), imported(x), strict=True):
            begin = total // 2 if mode == "SAME_UPPER" else total - total // 2
            rows = [
                [place for place in range(at - begin, at - begin + 3) if 0 <= place < size] for at in range(0, size, 2)
            ]
            expected = [x[..., row].sum(-1) / (3 if includes else len(row)) for row in rows]
            np.testing.assert_allclose(got, np.stack(expected, -1), rtol=1e-5, atol=1e-6, err_msg=name)


#: Modes, with scales for which they differ: at 0.5 and 1.5 elements are read that are as near as others.
_MODES = {
    'mode = "nearest"': (0.5, 0.7, 1.5, 2.75),
    'mode = "nearest", nearest_mode = "floor", coordinate_transformation_mode = "asymmetric"': (0.7, 1.5),
    'mode = "nearest", nearest_mode = "ceil"': (0.5, 2.75),
    'mode = "nearest", nearest_mode = "round_prefer_ceil"': (0.5, 1.5),
    'mode = "linear"': (0.7, 2.75),
    'mode = "linear", coordinate_transformation_mode = "half_pixel_symmetric"': (0.7, 2.75),
    'mode = "cubic"': (0.7,),
    'mode = "cubic", exclude_outside = 1': (2.75,),
    # Of which onnxruntime counts the result's whole elements, and ONNX's own tests what is behind the point as well.
    'mode = "linear", coordinate_transformation_mode = "align_corners"': (),
    'mode = "linear", coordinate_transformation_mode = "pytorch_half_pixel"': (),
}


def test_resizing_by_a_scale_that_is_no_whole_number() -> None:
    scales = {scale: f"scale{at}" for at, scale in enumerate(sorted({*itertools.chain(*_MODES.values())}))}
    constants = ", ".join(f"float[4] {name} = {{1, 1, {scale}, {scale}}}" for scale, name in scales.items())
    nodes = {
        f"mode{at}_{scales[scale]}": f"Resize <{mode}> (x, , {scales[scale]})"
        for at, (mode, chosen) in enumerate(_MODES.items())
        for scale in chosen
    }
    text = several("float[1, 2, N, 5] x", "float[1, 2, ?, ?]", nodes, constants)
    compared(text, *[(random(1, 2, rows, 5),) for rows in (2, 3, 6, 9)])


def test_resizing_to_the_sizes_of_another_tensor() -> None:
    nodes = {f"mode{at}": f"Resize <{mode}> (x, , , sizes)" for at, mode in enumerate(_MODES)}
    text = several("float[1, 2, N, 5] x, float[1, 2, M, K] z", "float[1, 2, M, K]", nodes)
    text = text.replace("{ mode0", "{ sizes = Shape (z) mode0")
    shapes = [((2, 5), (7, 8)), ((3, 5), (3, 5)), ((6, 5), (4, 1)), ((1, 5), (49, 3))]
    compared(text, *[(random(1, 2, *a), random(1, 2, *b)) for a, b in shapes])


@pytest.mark.parametrize("scales", [(0.6, 0.6), (2.5, 0.4), (1, 3), (1.0, 1.0)])
def test_resizing_of_opset_10_takes_the_next_element_of_what_becomes_smaller(scales: tuple[float, float]) -> None:
    text = """<ir_version: 5, opset_import: ["" : 10]> main (float[1, 1, 5, 4] x) => (float[1, 1, M, K] y)
        <float[4] scales = {1, 1, HEIGHT, WIDTH}> { y = Resize <mode = "nearest"> (x, scales) }"""
    model = onnx.parser.parse_model(text.replace("HEIGHT", str(scales[0])).replace("WIDTH", str(scales[1])))
    x = random(1, 1, 5, 4)
    session = onnxruntime.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    np.testing.assert_array_equal(autocast.from_onnx(model)(x), session.run(None, {"x": x})[0])


def test_padding_of_some_axes_by_less_than_nothing_cuts_them() -> None:
    text = "(float[1, 2, 5, 6] x) => (float[1, 2, M, K] y) <int64[4] p = {-1, 2, 1, -2}, int64[2] axes = {-1, 2}>"
    compared(f"{text} {{ y = Pad (x, p, , axes) }}", (random(1, 2, 5, 6),))


@pytest.mark.parametrize(
    ("text", "calls"),
    [
        (
            "(float[6, N] x, int64[3] to) => (float[A, B, C] y) { y = Reshape (x, to) }",
            [(random(6, 2), np.array(to)) for to in ([3, 4, 1], [-1, 2, 3], [0, 2, -1], [12, 1, -1])],
        ),
        (
            "(float[N, 1] x, int64[3] to) => (float[A, B, C] y) { y = Expand (x, to) }",
            [(random(2, 1), np.array(to)) for to in ([3, 2, 4], [1, 1, 1], [5, 1, 2])],
        ),
        (
            "(int64[2] to) => (float[A, B] y) { y = ConstantOfShape (to) }",
            [(np.array(to),) for to in ([2, 3], [0, 4])],
        ),
        (
            "(float[N, 2] x, int64[2] times) => (float[A, B] y) { y = Tile (x, times) }",
            [(random(3, 2), np.array(times)) for times in ([2, 3], [1, 1], [4, 0])],
        ),
        (
            "(int64 a, int64 b, int64 c) => (int64[N] y) { y = Range (a, b, c) }",
            [tuple(map(np.array, ends)) for ends in ((0, 5, 1), (2, 9, 3), (7, -3, -4), (5, 2, 1))],
        ),
        (
            "(float a, float b, float c) => (float[N] y) { y = Range (a, b, c) }",
            [tuple(np.array(end, "float32") for end in ends) for ends in ((0, 1, 0.25), (2, -1, -0.5))],
        ),
        (
            "(float[N, 3] x, int64[4] pads) => (float[A, B] y) { y = Pad (x, pads) }",
            [(random(4, 3), np.array(pads)) for pads in ([1, 2, 3, 0], [-1, 0, -2, 1], [0, -1, 2, -1])],
        ),
        (
            "(float[N, 3] x, int64[2] parts) => (float[A, 3] y, float[B, 3] z) { y, z = Split <axis = 0> (x, parts) }",
            [(random(5, 3), np.array(parts)) for parts in ([2, 3], [5, 0])],
        ),
        (
            "(int64[N] x, int64 depth) => (float[N, D] y) <float[2] values = {0, 1}> { y = OneHot (x, depth, values) }",
            [(np.array([0, 2, -1]), np.array(depth)) for depth in (3, 5)],
        ),
    ],
    ids=["Reshape", "Expand", "ConstantOfShape", "Tile", "Range", "Range of floats", "Pad", "Split", "OneHot"],
)
def test_shapes_and_counts_that_are_inputs(text: str, calls: list[tuple[Any, ...]]) -> None:
    compared(text, *calls)


def test_a_shape_that_is_computed_in_part_keeps_what_is_known_of_it() -> None:
    text = """
        (float[N, 6] x, int64[1] count) => (float[N, A, B] y) <int64[1] rest = {-1}> {
            rows = Shape <start = 0, end = 1> (x)
            to = Concat <axis = 0> (rows, count, rest)
            z = Reshape (x, to)
            y = Add (z, z)
        }
    """
    compared(text, *[(random(rows, 6), np.array([count])) for rows, count in ((2, 3), (5, 1), (4, 6))])
    imported = autocast.from_onnx(model_of(f"main {text}"))
    assert "R.Tensor((N, z_size_1, z_size_2)" in imported.mod.script()


def test_parts_that_are_not_all_of_an_axis_are_an_error() -> None:
    imported = autocast.from_onnx(
        model_of(
            "main (float[N, 3] x) => (float[2, 3] y, float[3, 3] z) <int64[2] parts = {2, 3}> "
            "{ y, z = Split <axis = 0> (x, parts) }"
        )
    )
    np.testing.assert_array_equal(imported(x := random(5, 3))[1], x[2:])
    with pytest.raises(InputError, match="needs"):
        imported(random(6, 3))


def test_what_a_file_says_of_its_results_does_not_count() -> None:
    model = model_of("main (float[1, 4] x) => (float[1, 4] y) { z = Relu (x) s = Shape (z) y = Reshape (z, s) }")
    stale = onnx.shape_inference.infer_shapes(model)
    stale.graph.input[0].type.tensor_type.shape.dim[0].dim_param = "batch"
    stale.graph.output[0].type.tensor_type.shape.dim.add().dim_value = 7
    imported = autocast.from_onnx(stale)
    np.testing.assert_array_equal(imported(x := random(3, 4)), np.maximum(x, 0))
    bare = onnx.ModelProto()
    bare.CopyFrom(model)
    bare.graph.output[0].type.tensor_type.ClearField("shape")
    np.testing.assert_array_equal(autocast.from_onnx(bare)(x[:1]), np.maximum(x[:1], 0))


def test_channels_that_have_a_name_are_as_many_as_the_weights_say() -> None:
    weight = ", ".join(["0.5"] * 36)
    text = f"""
        (float[B, C, N] x) => (float[B, 6, M] y)
            <float[6, 2, 3] w = {{{weight}}}> {{ y = Conv <group = 2> (x, w) }}
    """
    compared(text, (random(2, 4, 5),))
    with pytest.raises(InputError, match="C"):
        autocast.from_onnx(model_of(f"main {text}"))(random(2, 6, 5))


#: Equations, and the shapes of their operands.
_EINSUMS = {
    "bhid,bhjd->bhij": ["A,2,N,3", "A,2,M,3"],
    "...ij,...jk->...ik": ["A,2,N,3", "2,3,M"],
    "ij,ij->i": ["N,3", "N,3"],
    "i,j->ij": ["N", "M"],
    "ii->i": ["3,3"],
    "iij->j": ["3,3,N"],
    "ijk,k": ["A,N,3", "3"],
    "ab,bc,cd->da": ["N,3", "3,2", "2,M"],
    "bij->b": ["A,N,M"],
    "bi,bj,b->ji": ["A,N", "A,M", "A"],
}


def test_einsum_is_products_of_matrices() -> None:
    given, results, nodes = [], [], []
    for case, (equation, shapes) in enumerate(_EINSUMS.items()):
        names = [f"x{case}_{at}" for at in range(len(shapes))]
        given += [f"float[{sizes}] {name}" for sizes, name in zip(shapes, names, strict=True)]
        results.append(f"float[{','.join('?' * np.einsum(equation, *_ones(shapes, 2)).ndim)}] y{case}")
        nodes.append(f'y{case} = Einsum <equation = "{equation}"> ({", ".join(names)})')
    text = f"main ({', '.join(given)}) => ({', '.join(results)}) {{ {' '.join(nodes)} }}"
    imported = autocast.from_onnx(model_of(text))
    assert "einsum" not in imported.mod.script()
    for size in (1, 2, 4):
        inputs = [[random(*array.shape) for array in _ones(shapes, size)] for shapes in _EINSUMS.values()]
        for equation, operands, got in zip(_EINSUMS, inputs, imported(*itertools.chain(*inputs)), strict=True):
            expected = np.einsum(equation, *operands)
            np.testing.assert_allclose(got, expected, rtol=1e-5, atol=1e-5, err_msg=equation)


def _ones(shapes: list[str], size: int) -> list[np.ndarray]:
    """Tensors of these shapes, in which A, N and M are a size, and the two after it."""
    names = {"A": size, "N": size + 1, "M": size + 2}
    return [np.ones([names.get(name) or int(name) for name in sizes.split(",")], "float32") for sizes in shapes]


@pytest.mark.parametrize("options", ["group = 2, offset_group = 2, pads = [1, 0, 0, 1]", "strides = [2, 1]"])
def test_deformed_windows_read_between_the_elements_of_any_image(options: str) -> None:
    groups, channels = (2, 2) if "group" in options else (1, 4)
    text = (
        f"(float[B, 4, H, W] x, float[6, {channels}, 2, 2] w, float[B, {8 * groups}, P, Q] o, float[6] b, "
        f"float[B, {4 * groups}, P, Q] m) => (float[B, 6, P, Q] y) {{ y = DeformConv <{options}> (x, w, o, b, m) }}"
    )
    sizes = [(5, 4, 5, 4), (3, 6, 3, 6)] if groups == 2 else [(5, 4, 2, 3)]
    weight = random(6, channels, 2, 2)
    calls = [
        (random(2, 4, h, w), weight, 2 * random(2, 8 * groups, p, q), random(6), np.abs(random(2, 4 * groups, p, q)))
        for h, w, p, q in sizes
    ]
    compared(text, *calls)


def test_regions_of_any_number_are_as_many_as_the_images_that_they_are_of() -> None:
    text = (
        "(float[1, 2, H, W] x, float[R, 4] regions) => (float[R, 2, 2, 2] y) <int64[2] images = {0, 0}> "
        "{ y = RoiAlign <output_height = 2, output_width = 2, sampling_ratio = 2> (x, regions, images) }"
    )
    compared(text, (random(1, 2, 6, 8), np.array([[0, 0, 3, 4], [1, 1, 5, 5]], "float32")))
