"""Resize: by Relax's operator where that means the same, and otherwise by a matrix of weights along each axis."""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from typing import Any

import numpy as np
import onnx
import tvm
from onnx import helper
from onnx.reference import ReferenceEvaluator
from tvm import relax

from autocast.frontend.onnx.converters.node import Converter, Node, dtype, said, shape, static
from autocast.frontend.onnx.converters.resampling import resampled, scaled
from autocast.frontend.onnx.expressions import OF_FLOATS, Ratio, parts
from autocast.ir import same_shape

op = relax.op

_NEAREST = "nearest"
_FIXED = "expected fixed ones: dynamic={name: size}"
#: What Relax's operator has, too; the others are in ONNX's alone.
_COORDINATES = ("half_pixel", "pytorch_half_pixel", "align_corners", "asymmetric")
#: The next element of what becomes smaller, the one before of what becomes larger.
_SIMPLE = "simple"
_IN_OPSET_10 = {"coordinate_transformation_mode": "asymmetric", "nearest_mode": _SIMPLE}


def _resize(node: Node) -> relax.Expr:
    """By the scales or the sizes of some axes, of which one is left out, or empty."""
    if node.opset < 11:
        return _upsample(node)
    x, rank = node[0], len(shape(node[0]))
    attributes = {key: value for key, value in node.attributes.items() if key != "axes"}
    axes = [axis % rank for axis in node.attributes.get("axes", range(rank))]
    regions = _regions(node.known_or(1, "region (roi)", np.empty(0)), axes, rank)
    if node.get(2) is not None and static(node[2], "scales") != (0,):
        return _scaled(node, x, axes, 2, regions, attributes)
    return _by_sizes(node, x, axes, said(node, 3, "sizes"), regions, attributes)


def _upsample(node: Node) -> relax.Expr:
    attributes = {**node.attributes, **_IN_OPSET_10}
    scales = attributes.pop("scales", None)
    if scales is not None:
        return _by_scales(node, node[0], np.array(scales, "float32"), None, attributes)
    return _scaled(node, node[0], [*range(len(shape(node[0])))], 1, None, attributes)


def _scaled(
    node: Node, x: relax.Expr, axes: list[int], at: int, regions: np.ndarray | None, attributes: Mapping[str, Any]
) -> relax.Expr:
    """By the scales that an input holds: numbers, or sizes over those that there are."""
    found = node.expressions(at)
    if found is not None and any(isinstance(part, tvm.ir.Expr) for one in found for part in parts(one)):
        sizes = [OF_FLOATS["Mul"](shape(x)[axis], scale) for axis, scale in zip(axes, found, strict=True)]
        sizes = [size.floor() if isinstance(size, Ratio) else size for size in sizes]
        if attributes.get("nearest_mode") == _SIMPLE:
            attributes = {**attributes, "nearest_mode": "floor"}
        return _by_sizes(node, x, axes, sizes, regions, attributes)
    factors = np.ones(len(shape(x)))
    factors[axes] = node.known(at, "scales")
    return _by_scales(node, x, factors, regions, attributes)


def _by_sizes(
    node: Node,
    x: relax.Expr,
    axes: list[int],
    sizes: list[Any],
    regions: np.ndarray | None,
    attributes: Mapping[str, Any],
) -> relax.Expr:
    extents = shape(x)
    policy = attributes.get("keep_aspect_ratio_policy", "stretch")
    wanted, factors = [*extents], np.ones(len(extents))
    if not all(isinstance(size, int) for size in (*sizes, *(extents[axis] for axis in axes))):
        node.refuse(f"Resize with keep_aspect_ratio_policy={policy!r} of sizes that vary", policy != "stretch", _FIXED)
        for axis, size in zip(axes, sizes, strict=True):
            wanted[axis], factors[axis] = size, 1.0 if same_shape([size], [extents[axis]]) else np.nan
        return _to_sizes(node, x, factors, wanted, regions, attributes)
    factors[axes] = np.array(sizes, "float64") / np.array([extents[axis] for axis in axes])
    if policy != "stretch":
        factors[axes] = factors[axes].min() if policy == "not_larger" else factors[axes].max()
        sizes = np.floor(np.array([extents[axis] for axis in axes]) * factors[axes] + 0.5).astype(int).tolist()
    for axis, size in zip(axes, sizes, strict=True):
        wanted[axis] = size
    return _to_sizes(node, x, factors, wanted, regions, attributes)


def _regions(roi: np.ndarray, axes: list[int], rank: int) -> np.ndarray | None:
    """Where the region of each axis begins and ends: (2, rank)."""
    if not roi.size:
        return None
    regions = np.stack([np.zeros(rank), np.ones(rank)])
    regions[:, axes] = roi.reshape(2, -1)
    return regions


def _by_scales(
    node: Node, x: relax.Expr, scales: np.ndarray, regions: np.ndarray | None, attributes: Mapping[str, Any]
) -> relax.Expr:
    if attributes.get("nearest_mode") == _SIMPLE:
        for some, nearest in ((np.minimum(scales, 1), "ceil"), (np.maximum(scales, 1), "floor")):
            if (some != 1).any():
                x = _by_scales(node, x, some, regions, {**attributes, "nearest_mode": nearest})
        return x
    extents = shape(x)
    cropped = np.ones(len(extents)) if regions is None or not _crops(attributes) else regions[1] - regions[0]
    factors = [float(scale) for scale in scales]
    sizes = [
        int(np.floor(np.float32(extent * width) * np.float32(factor)))
        if isinstance(extent, int)
        else scaled(node, extent, factor)
        for extent, width, factor in zip(extents, cropped, factors, strict=True)
    ]
    return _to_sizes(node, x, np.array(factors), sizes, regions, attributes)


def _crops(attributes: Mapping[str, Any]) -> bool:
    return attributes.get("coordinate_transformation_mode") == "tf_crop_and_resize"


def _to_sizes(
    node: Node,
    x: relax.Expr,
    scales: np.ndarray,
    sizes: list[Any],
    regions: np.ndarray | None,
    attributes: Mapping[str, Any],
) -> relax.Expr:
    """`scales` and `sizes` are those of all axes; a scale that is not a number is the size over the one before."""
    extents = shape(x)
    mode = str(attributes.get("mode", _NEAREST))
    coordinates = str(attributes.get("coordinate_transformation_mode", "half_pixel"))
    is_exact = all(
        _is_exact(extent, float(scale), size, mode) for extent, scale, size in zip(extents, scales, sizes, strict=True)
    )
    is_plain = len(extents) == 4 and all(scales[:2] == 1) and coordinates in _COORDINATES and is_exact
    if is_plain and "float" in dtype(x) and not attributes.get("antialias") and not attributes.get("exclude_outside"):
        return node.emit(
            op.image.resize2d(
                x,
                size=relax.ShapeExpr(sizes[2:]),
                layout="NCHW",
                method="nearest_neighbor" if mode == _NEAREST else mode,
                coordinate_transformation_mode=coordinates,
                rounding_method=str(attributes.get("nearest_mode", "round_prefer_floor")),
                cubic_alpha=float(attributes.get("cubic_coeff_a", -0.75)),
            )
        )
    node.refuse(
        f"Resize of {dtype(x)} by mode={mode!r}", mode != _NEAREST and "float" not in dtype(x), "expected floats"
    )
    if not all(isinstance(size, int) for size in (*extents, *sizes)):
        asks = bool(attributes.get("antialias")) or _crops(attributes)
        node.refuse("Resize with antialias or a region, of sizes that vary,", asks, _FIXED)
        for axis, (size, scale) in enumerate(zip(sizes, scales, strict=True)):
            if scale != 1:
                x = resampled(node, x, axis, size, None if np.isnan(scale) else float(scale), attributes)
        return x
    outside: list[tuple[int, np.ndarray]] = []
    for axis, (extent, size) in enumerate(zip(extents, sizes, strict=True)):
        region = None if regions is None else regions[:, axis]
        if size == extent and scales[axis] == 1 and not (_crops(attributes) and region is not None):
            continue
        matrix, beyond = _weights(extent, size, float(scales[axis]), region, attributes)
        x = _along(node, x, axis, matrix, mode == _NEAREST)
        outside += [(axis, beyond)] if beyond.any() else []
    for axis, beyond in outside:
        mask = beyond.reshape([-1 if at == axis else 1 for at in range(len(extents))])
        value = relax.const(float(attributes.get("extrapolation_value", 0.0)), dtype(x))
        x = node.emit(op.where(relax.const(mask), value, x))
    return x


def _is_exact(extent: Any, scale: float, size: Any, mode: str) -> bool:
    """Whether Relax's operator, which divides sizes as float32, has the same coordinates."""
    if np.isnan(scale):
        return mode != _NEAREST
    return bool(extent * scale == size if isinstance(extent, int) else scale == int(scale))


def _along(node: Node, x: relax.Expr, axis: int, matrix: np.ndarray, is_choice: bool) -> relax.Expr:
    """The product with a matrix (extent, size) along an axis; where each result is one element, that element."""
    if is_choice:
        return node.emit(op.take(x, relax.const(matrix.argmax(0).astype("int64")), axis=axis, mode="clip"))
    order = [*range(len(shape(x)))]
    order[axis], order[-1] = order[-1], order[axis]
    wide = "float64" if dtype(x) == "float64" else "float32"
    product = op.matmul(op.permute_dims(node.cast(x, wide), order), relax.const(matrix.astype(wide)))
    return node.cast(op.permute_dims(product, order), dtype(x))


def _weights(
    extent: int, size: int, scale: float, region: np.ndarray | None, attributes: Mapping[str, Any]
) -> tuple[np.ndarray, np.ndarray]:
    """What becomes of vectors that have a single 1: (extent, size); and which results are none of theirs: (size)."""
    options = {key: value for key, value in attributes.items() if key != "keep_aspect_ratio_policy"}
    options |= {"extrapolation_value": 1.0}
    names = ["x", "roi", "scales"] if size == int(np.floor(extent * scale)) else ["x", "roi", "", "sizes"]
    given = {
        "x": np.concatenate([np.eye(extent), np.zeros((1, extent))]),
        "roi": np.array([0, 0, 1, 1] if region is None else [0, region[0], 1, region[1]], "float32"),
        "scales": np.array([1, scale], "float32"),
        "sizes": np.array([extent + 1, size], "int64"),
    }
    given = {name: given[name] for name in names if name}
    if _crops(attributes) and "scales" in given and region is not None:
        given["scales"] = np.array([1, scale], "float64")
    graph = helper.make_graph(
        [helper.make_node("Resize", names, ["y"], **options)],
        "resize",
        [
            helper.make_tensor_value_info(name, helper.np_dtype_to_tensor_dtype(value.dtype), None)
            for name, value in given.items()
        ],
        [helper.make_tensor_value_info("y", onnx.TensorProto.DOUBLE, None)],
    )
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 19)])
        (rows,) = ReferenceEvaluator(model).run(None, given)
    beyond = rows[-1] != 0
    return np.where(beyond, 0, rows[:-1]), beyond


CONVERTERS: dict[str, Converter] = {"Resize": _resize, "Upsample": _upsample}
