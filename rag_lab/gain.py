"""Gain, discount and their sum: the parts of NDCG."""

import math

GAINS = ("linear", "exp2")
DISCOUNTS = ("log2", "method0")


def dcg(grades, k=None, gain="linear", discount="log2"):
    """Discounted cumulated gain of grades in rank order (None = not judged = 0)."""
    weights = discount_weights(len(grades[:k]), discount)
    return math.fsum(g * w for g, w in zip(gains(grades[:k], gain), weights, strict=True))


def gains(grades, gain="linear"):
    """Return the gain of each grade; unjudged (None) and negative grades give 0.0."""
    levels = [max(grade or 0, 0) for grade in grades]
    return [2.0**level - 1.0 for level in levels] if gain == "exp2" else [float(level) for level in levels]


def discount_weights(n, discount="log2"):
    """Return the weights of ranks 1 … n."""
    if discount == "method0":
        return [1.0 if rank == 1 else 1.0 / math.log2(rank) for rank in range(1, n + 1)]
    return [1.0 / math.log2(rank + 1) for rank in range(1, n + 1)]
