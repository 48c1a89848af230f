"""Write boosted trees as an XGBoost model file, so that banks' scoring engines can load them.

The JSON model format of XGBoost 3 (its "Introduction to Model IO"; the schema there names every
field). XGBoost sends a value left where it is below the split's condition, and a missing one by the
node's default: the same rule as here, on the same float32 edges.
"""

import json
import math
from collections.abc import Sequence
from typing import Any

from privacy.errors import UsageError
from tidegate.tree_model import NO_EDGE, NO_SPLIT, TreeModel

VERSION = (3, 0, 0)
_NO_PARENT = 2**31 - 1


def to_xgboost_json(model: TreeModel, features: Sequence[str]) -> bytes:
    """Give the bytes of a file that ``xgboost.Booster(model_file=...)`` loads; UTF-8 JSON.

    Its predictions are ``TreeModel.predict_margin``'s, after the logistic function.

    Args:
        model: Finished or not; trees not grown yet say nothing and are left out.
        features: Names, in the order of the model's: the job's ``[trees]`` features.

    Raises:
        UsageError: There are not as many names as features.
    """
    if len(features) != len(model.edges):
        raise UsageError(f"{len(features)} feature names for a model of {len(model.edges)}")
    grown = [
        tree
        for tree in range(len(model.value_TV))
        if model.feature_TI[tree, 0] != NO_SPLIT or model.value_TV[tree, 0]
    ]
    trees = [_tree(model, tree, number) for number, tree in enumerate(grown)]
    learner = {
        "attributes": {},
        "feature_names": list(features),
        "feature_types": ["float"] * len(features),
        "gradient_booster": {
            "model": {
                "gbtree_model_param": {"num_parallel_tree": "1", "num_trees": str(len(trees))},
                "iteration_indptr": list(range(len(trees) + 1)),
                "tree_info": [0] * len(trees),
                "trees": trees,
            },
            "name": "gbtree",
        },
        "learner_model_param": {
            "base_score": repr(1 / (1 + math.exp(-model.base_margin))),
            "boost_from_average": "0",
            "num_class": "0",
            "num_feature": str(len(features)),
            "num_target": "1",
        },
        "objective": {"name": "binary:logistic", "reg_loss_param": {"scale_pos_weight": "1"}},
    }
    content = {"learner": learner, "version": list(VERSION)}
    return json.dumps(content, allow_nan=False, separators=(",", ":")).encode()


def _tree(model: TreeModel, tree: int, number: int) -> dict[str, Any]:
    """Write one tree: its nodes in breadth-first order, without the heap's empty places."""
    places = _reached(model, tree)
    index = {node: place for place, node in enumerate(places)}
    inner = [_is_split(model, tree, node) for node in places]
    conditions, features, defaults = [], [], []
    for node, split in zip(places, inner, strict=True):
        feature = int(model.feature_TI[tree, node]) if split else 0
        cuts = model.edges[feature]
        last = int(model.bin_TI[tree, node]) if split else 0
        edge = cuts[last] if last < len(cuts) else NO_EDGE
        conditions.append(edge if split else float(model.value_TV[tree, node]))
        features.append(feature)
        defaults.append(int(split and bool(model.missing_left_TI[tree, node])))
    count = len(places)
    return {
        "base_weights": [float(model.value_TV[tree, node]) for node in places],
        "categories": [],
        "categories_nodes": [],
        "categories_segments": [],
        "categories_sizes": [],
        "default_left": defaults,
        "id": number,
        "left_children": [index.get(2 * node + 1, -1) for node in places],
        "loss_changes": [0.0] * count,
        "parents": [index[(node - 1) // 2] if node else _NO_PARENT for node in places],
        "right_children": [index.get(2 * node + 2, -1) for node in places],
        "split_conditions": conditions,
        "split_indices": features,
        "split_type": [0] * count,
        "sum_hessian": [0.0] * count,
        "tree_param": {
            "num_deleted": "0",
            "num_feature": str(len(model.edges)),
            "num_nodes": str(count),
            "size_leaf_vector": "1",
        },
    }


def _reached(model: TreeModel, tree: int) -> list[int]:
    """Give the nodes of a tree that a record can come to, parents before children."""
    places = [0]
    for node in places:  # grows as it goes
        if _is_split(model, tree, node):
            places += [2 * node + 1, 2 * node + 2]
    return places


def _is_split(model: TreeModel, tree: int, node: int) -> bool:
    return node < model.feature_TI.shape[1] and bool(model.feature_TI[tree, node] != NO_SPLIT)
