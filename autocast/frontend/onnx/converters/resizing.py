"""Resize: by Relax's operator where that means the same, and otherwise by a matrix of weights along each axis."""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import onnx
from onnx import helper
from onnx.reference import ReferenceEvaluator
from tvm import relax

from autocast.errors import UnsupportedError
from autocast.frontend.onnx.converters.node import Converter, Node, dtype, shape, static

op = relax.op

_NEAREST = "nearest"
#: What Relax's operator has, too; the others are in ONNX's alone.
_COORDINATES = ("half_pixel", "pytorch_half_pixel", "align_corners", "asymmetric")
_IN_OPSET_10 = {"coordinate_transformation_mode": "asymmetric", "nearest_mode": "floor"}


def _resize(node: Node) -> relax.Expr:
    if node.opset < 11:
        return _resized(node, (node[0], None, node.inputs[1]), 1, None, {**node.attributes, **_IN_OPSET_10})
    return _resized(node, node.inputs, 2, 3, node.attributes)


def _upsample(node: Node) -> relax.Expr:
    attributes = {**node.attributes, **_IN_OPSET_10}
    scales = attributes.pop("scales", None)
    given = node.known(1, "scales") if scales is None else np.array(scales, "float32")
    return _by_scales(node, node[0], given, None, attributes)


def _resized(
    node: Node, inputs: Sequence[relax.Expr | None], scales_at: int, sizes_at: int | None, attributes: Mapping[str, Any]
) -> relax.Expr:
    """`scales_at`, `sizes_at`: which inputs say by how much, of which one is left out, or empty."""
    x, axes = node[0], attributes.get("axes")
    rank = len(shape(x))
    attributes = {key: value for key, value in attributes.items() if key != "axes"}
    axes = [*range(rank)] if axes is None else [axis % rank for axis in axes]
    scales = node.known_or(scales_at, "scales", np.empty(0))
    sizes = np.empty(0) if sizes_at is None else node.known_or(sizes_at, "sizes", np.empty(0))
    roi = node.known_or(1, "region (roi)", np.empty(0)) if sizes_at is not None else np.empty(0)
    if scales.size:
        factors = np.ones(rank)
        factors[axes] = scales
        return _by_scales(node, x, factors, _regions(roi, axes, rank), attributes)
    extents = static(x, "input")
    policy = attributes.get("keep_aspect_ratio_policy", "stretch")
    wanted = np.array(extents, "int64")
    factors = np.array(sizes, "float64") / np.array([extents[axis] for axis in axes])
    if policy != "stretch":
        factors[:] = factors.min() if policy == "not_larger" else factors.max()
        sizes = np.floor(np.array([extents[axis] for axis in axes]) * factors + 0.5)
    wanted[axes] = sizes
    whole = np.ones(rank)
    whole[axes] = factors
    return _to_sizes(node, x, whole, wanted.tolist(), _regions(roi, axes, rank), attributes)


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
    extents = shape(x)
    cropped = np.ones(len(extents)) if regions is None or not _crops(attributes) else regions[1] - regions[0]
    factors = [float(scale) for scale in scales]
    sizes = [
        int(np.floor(extent * width * factor)) if isinstance(extent, int) else extent * int(factor)
        for extent, width, factor in zip(extents, cropped, factors, strict=True)
    ]
    if any(not isinstance(size, int) and factor != int(factor) for size, factor in zip(sizes, factors, strict=True)):
        raise UnsupportedError(
            f"it resizes axes whose sizes vary by {factors}; expected whole numbers, or fixed sizes: "
            "dynamic={name: size}"
        )
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
    """`scales` and `sizes` are those of all axes."""
    extents = shape(x)
    mode = str(attributes.get("mode", _NEAREST))
    coordinates = str(attributes.get("coordinate_transformation_mode", "half_pixel"))
    is_exact = all(
        not isinstance(extent, int) or extent * scale == size
        for extent, scale, size in zip(extents, scales, sizes, strict=True)
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
    fixed = static(x, "input")
    node.refuse(
        f"Resize of {dtype(x)} by mode={mode!r}", mode != _NEAREST and "float" not in dtype(x), "expected floats"
    )
    outside: list[tuple[int, np.ndarray]] = []
    for axis, (extent, size) in enumerate(zip(fixed, sizes, strict=True)):
        region = None if regions is None else regions[:, axis]
        if size == extent and scales[axis] == 1 and not (_crops(attributes) and region is not None):
            continue
        matrix, beyond = _weights(extent, size, float(scales[axis]), region, attributes)
        x = _along(node, x, axis, matrix, mode == _NEAREST)
        outside += [(axis, beyond)] if beyond.any() else []
    for axis, beyond in outside:
        mask = beyond.reshape([-1 if at == axis else 1 for at in range(len(fixed))])
        value = relax.const(float(attributes.get("extrapolation_value", 0.0)), dtype(x))
        x = node.emit(op.where(relax.const(mask), value, x))
    return x


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
