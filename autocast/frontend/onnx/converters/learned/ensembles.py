"""The trees that a node's attributes say, as tables of their nodes, one tree after the other."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from onnx import numpy_helper

from autocast.errors import UnsupportedError
from autocast.frontend.onnx.converters.node import Node

#: The mode of a node that has no children.
LEAF = "LEAF"


@dataclass(frozen=True)
class Forest:
    """Nodes of all trees, numbered through; a leaf's children are itself.

    Attributes
    ----------
    roots
        The number of each tree's first node.
    modes, features, thresholds, then, otherwise, missing
        Of each node: how it compares which feature with what, where a row goes if that holds and if not, and whether
        it holds for NaN.
    weights
        Of each node and each target, 0 where a node says nothing of a target.
    weighed
        The targets that some leaf says something of.
    is_full
        Whether each leaf has a weight of each target.
    base
        What is added to the targets.
    """

    roots: np.ndarray
    modes: Sequence[str]
    features: np.ndarray
    thresholds: np.ndarray
    then: np.ndarray
    otherwise: np.ndarray
    missing: np.ndarray
    weights: np.ndarray
    weighed: np.ndarray
    is_full: bool
    base: np.ndarray

    @property
    def depth(self) -> int:
        """How many nodes the longest way down has, besides its leaf."""
        at, count = np.unique(self.roots), 0
        while (inner := at[np.array(self.modes)[at] != LEAF]).size:
            at, count = np.unique(np.concatenate([self.then[inner], self.otherwise[inner]])), count + 1
            if count > len(self.modes):
                raise UnsupportedError("a tree goes around in a circle; expected children that come from one node")
        return count


def of_nodes(node: Node, prefix: str, targets: int) -> Forest:
    """The trees of a `TreeEnsembleRegressor` (prefix "target") or `TreeEnsembleClassifier` ("class")."""
    asked = node.attributes
    trees, numbers = (np.array(asked.get(f"nodes_{name}", ()), "int64") for name in ("treeids", "nodeids"))
    place = {pair: at for at, pair in enumerate(zip(trees.tolist(), numbers.tolist(), strict=True))}
    modes = [mode.decode() for mode in asked["nodes_modes"]]
    then, otherwise = (
        np.array(
            [
                at if mode == LEAF else place[tree, child]
                for at, (mode, tree, child) in enumerate(zip(modes, trees.tolist(), children, strict=True))
            ],
            "int64",
        )
        for children in (asked["nodes_truenodeids"], asked["nodes_falsenodeids"])
    )
    weights = _numbers(node, f"{prefix}_weights")
    pairs = zip(asked[f"{prefix}_treeids"], asked[f"{prefix}_nodeids"], strict=True)
    rows = np.array([place[pair] for pair in pairs], "int64")
    columns = np.array(asked[f"{prefix}_ids"], "int64")
    table = np.zeros((len(modes), targets), weights.dtype)
    np.add.at(table, (rows, columns), weights)
    said = np.zeros(table.shape, bool)
    said[rows, columns] = True
    inner = np.array([mode != LEAF for mode in modes])
    below = set(np.concatenate([then[inner], otherwise[inner]]).tolist())
    missing = np.array(asked.get("nodes_missing_value_tracks_true") or [0] * len(modes), bool)
    return Forest(
        roots=np.array([at for at in range(len(modes)) if at not in below], "int64"),
        modes=modes,
        features=np.array(asked["nodes_featureids"], "int64"),
        thresholds=_numbers(node, "nodes_values"),
        then=then,
        otherwise=otherwise,
        missing=missing,
        weights=table,
        weighed=np.unique(columns),
        is_full=bool(said[~inner].all()),
        base=_numbers(node, "base_values"),
    )


#: What the numbers of a `TreeEnsemble`'s modes say.
_MODES = ("BRANCH_LEQ", "BRANCH_LT", "BRANCH_GTE", "BRANCH_GT", "BRANCH_EQ", "BRANCH_NEQ", "BRANCH_MEMBER")


def of_trees(node: Node) -> Forest:
    """The trees of a `TreeEnsemble`, whose leaves are apart from its nodes; each says one target's weight."""
    asked = node.attributes
    modes = [_MODES[int(mode)] for mode in numpy_helper.to_array(asked["nodes_modes"])]
    inner, ids = len(modes), np.array(asked["leaf_targetids"], "int64")
    leaf_weights, splits = _numbers(node, "leaf_weights"), _numbers(node, "nodes_splits")
    then, otherwise = (
        np.array(
            [
                child + inner * int(is_leaf)
                for child, is_leaf in zip(asked[f"nodes_{side}nodeids"], asked[f"nodes_{side}leafs"], strict=True)
            ],
            "int64",
        )
        for side in ("true", "false")
    )
    leaves = np.arange(inner, inner + len(ids))
    weights = np.zeros((inner + len(ids), int(asked["n_targets"])), leaf_weights.dtype)
    weights[leaves, ids] = leaf_weights
    missing = asked.get("nodes_missing_value_tracks_true") or [0] * inner
    return Forest(
        roots=np.array(asked["tree_roots"], "int64"),
        modes=[*modes, *[LEAF] * len(ids)],
        features=np.concatenate([np.array(asked["nodes_featureids"], "int64"), np.zeros(len(ids), "int64")]),
        thresholds=np.concatenate([splits, np.zeros(len(ids), splits.dtype)]),
        then=np.concatenate([then, leaves]),
        otherwise=np.concatenate([otherwise, leaves]),
        missing=np.array([*missing, *[0] * len(ids)], bool),
        weights=weights,
        weighed=np.unique(ids),
        is_full=weights.shape[1] == 1,
        base=np.zeros(0, leaf_weights.dtype),
    )


def _numbers(node: Node, name: str) -> np.ndarray:
    """An attribute of floats, or the tensor in its place."""
    tensor = node.attributes.get(f"{name}_as_tensor", node.attributes.get(name))
    return (
        numpy_helper.to_array(tensor) if hasattr(tensor, "dims") else np.array([] if tensor is None else tensor, "f4")
    )
