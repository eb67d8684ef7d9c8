"""Operators of `ai.onnx.ml`, as scikit-learn's converters write them, beside onnxruntime."""

# ruff: noqa: E402 (what the imports need may not be installed)

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

onnx = pytest.importorskip("onnx", reason="the extra `onnx` is not installed; make test installs it")
pytest.importorskip("onnxruntime", reason="onnxruntime is not installed; make test installs it")

import autocast
from autocast.errors import UnsupportedError
from tests.frontend.onnx.one_node import assert_computes_the_same, by_onnxruntime, one_node, random

_X = random(5, 4)
_DIMS = {"x": ["N", 4]}


def compare(operator: str, x: np.ndarray = _X, *others: np.ndarray, **options: Any) -> None:
    inputs = {"x": x} | {f"x{at}": other for at, other in enumerate(others)}
    assert_computes_the_same(operator, inputs, domain="ai.onnx.ml", **options)


_WITH_GAPS = np.where(np.arange(20).reshape(5, 4) % 3 == 0, np.nan, _X).astype("float32")
_NUMBERS = np.arange(12, dtype="int64").reshape(4, 3) % 5


@pytest.mark.parametrize(
    ("operator", "inputs", "options"),
    [
        ("Scaler", [_X], {"offset": [0.5, 1.0, -1.0, 2.0], "scale": [2.0, 1.0, 0.5, 3.0]}),
        ("Scaler", [_NUMBERS], {"offset": [0.5], "scale": [2.0]}),
        *[("Normalizer", [np.concatenate([_X, 0 * _X])], {"norm": norm}) for norm in ("L1", "L2")],
        ("Normalizer", [np.abs(_X)], {"norm": "MAX"}),
        ("Binarizer", [_X], {"threshold": 0.25}),
        ("Imputer", [_WITH_GAPS], {"imputed_value_floats": [1.0, 2.0, 3.0, 4.0], "replaced_value_float": np.nan}),
        ("Imputer", [_X], {"imputed_value_floats": [7.0], "replaced_value_float": float(_X[1, 2])}),
        ("Imputer", [_NUMBERS], {"imputed_value_int64s": [7], "replaced_value_int64": 3, "dtypes": {"y": "int64"}}),
        ("OneHotEncoder", [_NUMBERS], {"cats_int64s": [0, 4, 1], "zeros": 1, "axes": {"y": 3}}),
        ("LabelEncoder", [_NUMBERS], {"keys_int64s": [1, 4], "values_floats": [0.5, 2.5], "default_float": -3.0}),
        ("LabelEncoder", [_WITH_GAPS], {"keys_floats": [np.nan, float(_X[0, 1])], "values_floats": [1.0, 2.0]}),
        ("LabelEncoder", [_NUMBERS], {"keys_int64s": [1, 4], "values_int64s": [5, 6], "dtypes": {"y": "int64"}}),
        ("ArrayFeatureExtractor", [_X, np.array([3, 0, 3])], {}),
        ("ArrayFeatureExtractor", [_X[0], np.array([[1, 2]])], {"axes": {"y": 2}}),
        ("FeatureVectorizer", [_X, _X[:, :2]], {"inputdimensions": [4, 2]}),
    ],
)
def test_features_are_what_onnxruntime_makes_of_them(
    operator: str, inputs: list[np.ndarray], options: dict[str, Any]
) -> None:
    compare(operator, *inputs, **options)


@pytest.mark.parametrize(
    ("classes", "transform"),
    [(1, "NONE"), (1, "LOGISTIC"), (1, "SOFTMAX"), (2, "LOGISTIC"), (3, "NONE"), (3, "SOFTMAX"), (3, "SOFTMAX_ZERO")],
)
def test_a_linear_classifier_has_labels_and_scores(classes: int, transform: str) -> None:
    compare(
        "LinearClassifier",
        results=["label", "scores"],
        axes={"label": 1},
        dims=_DIMS,
        dtypes={"label": "int64"},
        classlabels_ints=[-7, 3, 5][: max(classes, 2)],
        coefficients=random(classes, 4, seed=1).reshape(-1).tolist(),
        intercepts=random(classes, seed=2).tolist(),
        post_transform=transform,
    )


def test_a_linear_regressor_has_targets() -> None:
    weights = {"coefficients": random(8, seed=1).tolist(), "intercepts": [1.0, -2.0], "targets": 2}
    compare("LinearRegressor", dims=_DIMS, **weights)


#: Two trees: one of two levels and one of one; numbers of nodes begin with 0 in each.
_TREES: dict[str, Any] = {
    "nodes_treeids": [0, 0, 0, 0, 0, 1, 1, 1],
    "nodes_nodeids": [0, 1, 2, 3, 4, 0, 1, 2],
    "nodes_featureids": [0, 2, 0, 0, 0, 3, 0, 0],
    "nodes_values": [0.1, -0.2, 0.0, 0.0, 0.0, 0.3, 0.0, 0.0],
    "nodes_modes": ["BRANCH_LEQ", "BRANCH_LEQ", "LEAF", "LEAF", "LEAF", "BRANCH_LEQ", "LEAF", "LEAF"],
    "nodes_truenodeids": [1, 3, 0, 0, 0, 1, 0, 0],
    "nodes_falsenodeids": [2, 4, 0, 0, 0, 2, 0, 0],
}
_MODES = ["BRANCH_GT", "BRANCH_LT", "LEAF", "LEAF", "LEAF", "BRANCH_GTE", "LEAF", "LEAF"]
_LEAVES = [(0, 2), (0, 3), (0, 4), (1, 1), (1, 2)]


def _weights(prefix: str, targets: int, **more: Any) -> dict[str, Any]:
    rows = [(tree, node, target) for tree, node in _LEAVES for target in range(targets)]
    columns = {
        f"{prefix}_{name}": list(column)
        for name, column in zip(("treeids", "nodeids", "ids"), zip(*rows, strict=True), strict=True)
    }
    return columns | {f"{prefix}_weights": random(len(rows), seed=3).tolist()} | more


@pytest.mark.parametrize(
    ("aggregate", "targets", "more"),
    [
        *[("SUM", 1, {}), ("SUM", 2, {"nodes_modes": _MODES}), ("AVERAGE", 1, {"base_values": [0.5]})],
        *[("MIN", 2, {"base_values": [0.5, -1.0]}), ("MAX", 1, {})],
    ],
)
def test_trees_give_what_their_leaves_say(aggregate: str, targets: int, more: dict[str, Any]) -> None:
    weights = _weights("target", targets, n_targets=targets, aggregate_function=aggregate)
    compare("TreeEnsembleRegressor", random(20, 4), dims=_DIMS, **_TREES | weights | more)


def test_trees_send_what_is_missing_where_they_say() -> None:
    weights = _weights("target", 1, n_targets=1)
    for missing in ([0] * 8, [0, 1, 0, 0, 0, 1, 0, 0]):
        more = {"nodes_missing_value_tracks_true": missing}
        compare("TreeEnsembleRegressor", np.tile(_WITH_GAPS, (2, 1)), dims=_DIMS, **_TREES | weights | more)


@pytest.mark.parametrize(
    ("kind", "transform"),
    [("three", "SOFTMAX"), ("shares", "NONE"), ("margins", "NONE"), ("margins", "LOGISTIC"), ("shares", "LOGISTIC")],
)
def test_a_classifier_of_trees_has_labels_and_scores(kind: str, transform: str) -> None:
    weights = _weights("class", 3 if kind == "three" else 1)
    if kind == "shares":
        weights["class_weights"] = [0.1, 0.3, 0.4, 0.2, 0.45]
    labels = {"classlabels_int64s": [4, -2, 9] if kind == "three" else [4, -2]}
    for more in ({}, {"base_values": [0.25, -0.5, 0.5] if kind == "three" else [0.125]}):
        compare(
            "TreeEnsembleClassifier",
            random(20, 4),
            results=["label", "scores"],
            axes={"label": 1},
            dims=_DIMS,
            dtypes={"label": "int64"},
            post_transform=transform,
            **_TREES | weights | labels | more,
        )


_SUPPORT = {"support_vectors": random(7 * 4, seed=4).tolist(), "kernel_params": [0.5, 0.25, 3.0]}


@pytest.mark.parametrize(("kernel", "one_class"), [("LINEAR", 0), ("POLY", 1), ("RBF", 0), ("SIGMOID", 1)])
def test_a_machine_of_vectors_is_a_sum_of_kernels(kernel: str, one_class: int) -> None:
    compare(
        "SVMRegressor",
        dims=_DIMS,
        kernel_type=kernel,
        one_class=one_class,
        n_supports=7,
        coefficients=random(7, seed=5).tolist(),
        rho=[0.1],
        **_SUPPORT,
    )


@pytest.mark.parametrize(("has_shares", "classes"), [(False, 2), (True, 3)])
def test_machines_vote_for_classes(has_shares: bool, classes: int) -> None:
    pairs = classes * (classes - 1) // 2
    shares = {"prob_a": random(pairs, seed=6).tolist(), "prob_b": random(pairs, seed=7).tolist()}
    compare(
        "SVMClassifier",
        random(9, 4),
        results=["label", "scores"],
        axes={"label": 1},
        dims=_DIMS,
        dtypes={"label": "int64"},
        classlabels_ints=[3, -1, 8][:classes],
        kernel_type="RBF",
        vectors_per_class=[3, 4] if classes == 2 else [3, 2, 2],
        coefficients=random(7 * (classes - 1), seed=5).tolist(),
        rho=random(pairs, seed=8).tolist(),
        **_SUPPORT,
        **shares if has_shares else {},
    )


@pytest.mark.parametrize(
    "labels", [{"classlabels_int64s": [3, -1, 8, 0]}, {"classlabels_strings": ["pear", "plum", "fig", "date"]}]
)
def test_maps_of_each_row_are_columns_of_a_table(labels: dict[str, list[Any]]) -> None:
    (keys,) = labels.values()
    model = one_node("ZipMap", {"x": _X}, dims=_DIMS, domain="ai.onnx.ml", **labels)
    kind = onnx.TensorProto.STRING if isinstance(keys[0], str) else onnx.TensorProto.INT64
    value = onnx.helper.make_tensor_type_proto(onnx.TensorProto.FLOAT, ())
    one = onnx.helper.make_map_type_proto(kind, value)
    model.graph.output[0].type.CopyFrom(onnx.helper.make_sequence_type_proto(one))
    (rows,) = by_onnxruntime(model, {"x": _X})
    np.testing.assert_array_equal(autocast.from_onnx(model)(_X), [[row[key] for key in keys] for row in rows])


def test_trees_are_compared_in_float32_whatever_a_policy_lowers() -> None:
    weights = _weights("target", 1, n_targets=1)
    model = autocast.from_onnx(one_node("TreeEnsembleRegressor", {"x": _X}, domain="ai.onnx.ml", **_TREES | weights))
    x = np.repeat(_X, 1, 0)
    x[:, 0] = np.nextafter(np.float32(0.1), np.float32(1))  # 0.1 in bfloat16
    low = autocast.amp.autocast(model)
    np.testing.assert_allclose(low(x), model(x), rtol=1e-2)


@pytest.mark.parametrize(
    ("operator", "message", "options"),
    [
        (
            "TreeEnsembleClassifier",
            "on these ONNX and onnxruntime do not agree",
            {**_TREES, **_weights("class", 2), "classlabels_int64s": [0, 1]},
        ),
        ("LinearRegressor", "post_transform='PROBIT'", {"coefficients": [1.0] * 4, "post_transform": "PROBIT"}),
        ("Normalizer", "norm='L3'", {"norm": "L3"}),
    ],
)
def test_what_is_no_tensor_or_of_no_known_kind_is_refused(operator: str, message: str, options: dict[str, Any]) -> None:
    results = ["label", "y"] if operator.endswith("Classifier") else ["y"]
    model = one_node(operator, {"x": _X}, results=results, dtypes={"label": "int64"}, domain="ai.onnx.ml", **options)
    with pytest.raises(UnsupportedError, match=message):
        autocast.from_onnx(model)
