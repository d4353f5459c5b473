"""fANOVA: the share of the variance that each parameter explains alone, by a random forest (Hutter et al. 2014).

Optuna's evaluator finds the same shares, but walks each tree in Python for each place of each parameter: seconds where
the boxes of all leaves at once take a tenth.

Letters of shapes: N trials, C columns, L leaves.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

_NUM_TREES, _MAX_DEPTH = 64, 64  # as in Optuna


def variance_shares(
    column_NC: np.ndarray, result_N: np.ndarray, parameters: Sequence[Sequence[int]], seed: int
) -> list[float] | None:
    """Return the share of each of ``parameters``, which are columns in [0, 1]: one, or one for each choice.

    None if no tree sees any variance.
    """
    from sklearn.ensemble import RandomForestRegressor

    forest = RandomForestRegressor(_NUM_TREES, max_depth=_MAX_DEPTH, random_state=seed).fit(column_NC, result_N)
    shares = []
    for estimator in forest.estimators_:
        low_LC, high_LC, value_L = _leaves(estimator.tree_)
        variance = _variance(value_L, np.prod(high_LC - low_LC, axis=1))
        if variance > 0:
            shares.append([_marginal(low_LC, high_LC, value_L, columns) / variance for columns in parameters])
    return [float(share) for share in np.mean(shares, axis=0)] if shares else None


def _leaves(tree: object) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return the box of each leaf, between low and high in each column, and its value."""
    feature, threshold, left, right, value, num_columns = (
        getattr(tree, name)
        for name in ("feature", "threshold", "children_left", "children_right", "value", "n_features")
    )
    low, high = np.zeros((len(feature), num_columns)), np.ones((len(feature), num_columns))
    nodes = np.zeros(1, int)
    while len(nodes := nodes[feature[nodes] >= 0]):
        for child in (left[nodes], right[nodes]):
            low[child], high[child] = low[nodes], high[nodes]
        high[left[nodes], feature[nodes]] = threshold[nodes]
        low[right[nodes], feature[nodes]] = threshold[nodes]
        nodes = np.concatenate([left[nodes], right[nodes]])
    is_leaf = feature < 0
    return low[is_leaf], high[is_leaf], value[is_leaf].ravel()


def _marginal(low_LC: np.ndarray, high_LC: np.ndarray, value_L: np.ndarray, columns: Sequence[int]) -> float:
    """Return the variance, over a parameter, of the mean over all others.

    It is a sum over pairs of leaves, weighted by how often both have a point with the same value of the parameter: a
    grid over the columns of n choices would have 2^n places.
    """
    size_LC = high_LC - low_LC
    mean = np.average(value_L, weights=np.prod(size_LC, axis=1))
    part_L = np.prod(np.delete(size_LC, columns, axis=1), axis=1) * (value_L - mean)
    product_LL = np.outer(part_L, part_L)
    for column in columns:
        if (size_LC[:, column] < 1).any():
            shared_LL = np.minimum.outer(high_LC[:, column], high_LC[:, column])
            shared_LL -= np.maximum.outer(low_LC[:, column], low_LC[:, column])
            product_LL *= np.maximum(shared_LL, 0, out=shared_LL)
    return float(max(0.0, product_LL.sum()))


def _variance(values: np.ndarray, weights: np.ndarray) -> float:
    return float(np.average((values - np.average(values, weights=weights)) ** 2, weights=weights))
