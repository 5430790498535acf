"""Combine the result lists of several retrievers.

A result list is a mapping of id to score. Scores of different retrievers have
different scales, so they are normalised first; ranks need no scale.
"""

import math

import numpy as np

from rag_lab.errors import OptionError

RRF_K = 60


def min_max(scores):
    """Map the scores of one list to [0, 1]; a constant list becomes 1.

    Examples
    --------
    >>> min_max({"a": 3.0, "b": 1.0, "c": 2.0})
    {'a': 1.0, 'b': 0.0, 'c': 0.5}
    """
    if not scores:
        return {}
    low, high = min(scores.values()), max(scores.values())
    # Halved, because the difference of two huge scores may exceed a float.
    width = high / 2 - low / 2
    if width == 0:
        return dict.fromkeys(scores, 1.0)
    return {key: (score / 2 - low / 2) / width for key, score in scores.items()}


def z_score(scores):
    """Shift and scale the scores of one list to mean 0 and deviation 1; a constant list becomes 0."""
    if not scores:
        return {}
    values = np.array(list(scores.values()), dtype=np.float64)
    scaled = values / (np.abs(values).max() or 1.0)
    deviation = scaled.std()
    if np.ptp(scaled) == 0 or deviation == 0:
        return dict.fromkeys(scores, 0.0)
    return dict(zip(scores, ((scaled - scaled.mean()) / deviation).tolist(), strict=True))


def raw(scores):
    """Leave scores as they are: what goes wrong without normalisation."""
    return dict(scores)


NORMALIZERS = {"minmax": min_max, "zscore": z_score, "raw": raw}


def convex(lists, weights, normalizer="minmax"):
    """Add up weighted, normalised scores.

    Parameters
    ----------
    lists : sequence of dict
        ``{id: score}`` of each retriever.
    weights : sequence of float
        One a list, each in [0, 1]; they sum to 1.
    normalizer : {"minmax", "zscore", "raw"}

    Returns
    -------
    dict
        ``{id: score}`` of every id in any list. An id absent from a list gets
        the lowest normalised value of that list for "zscore", else 0.
    """
    check_weights(weights, len(lists))
    normalise = NORMALIZERS.get(normalizer)
    if normalise is None:
        raise OptionError(f"normalizer is {normalizer!r}; expected one of {', '.join(NORMALIZERS)}")
    normalised = [normalise(scores) for scores in lists]
    absent = [min(scores.values(), default=0.0) if normalizer == "zscore" else 0.0 for scores in normalised]
    ids = dict.fromkeys(key for scores in lists for key in scores)
    return {
        key: math.fsum(
            weight * scores.get(key, missing)
            for weight, scores, missing in zip(weights, normalised, absent, strict=True)
        )
        for key in ids
    }


def check_weights(weights, count):
    """Raise OptionError unless there are `count` weights in [0, 1] that sum to 1."""
    if len(weights) != count or not all(0 <= weight <= 1 for weight in weights):
        raise OptionError(f"weights are {list(weights)}; expected {count} numbers in [0, 1]")
    if not math.isclose(math.fsum(weights), 1.0, abs_tol=1e-9):
        raise OptionError(f"weights {list(weights)} sum to {math.fsum(weights)}; expected 1")


def reciprocal_rank_fusion(rankings, k=RRF_K):
    """Score each id by Σ 1 / (k + rank) over the rankings.

    Parameters
    ----------
    rankings : sequence of sequence of str
        Ids, best first. An id that repeats in one ranking counts at its best rank.
    k : int
        Larger values flatten the differences between ranks.

    References
    ----------
    Cormack, Clarke & Büttcher (2009), "Reciprocal rank fusion outperforms
    Condorcet and individual rank learning methods", SIGIR.

    Examples
    --------
    >>> reciprocal_rank_fusion([["a", "b"], ["b"]])["b"] == 1 / 62 + 1 / 61
    True
    """
    terms = {}
    for ranking in rankings:
        for rank, key in enumerate(dict.fromkeys(ranking), start=1):
            terms.setdefault(key, []).append(1.0 / (k + rank))
    return {key: math.fsum(values) for key, values in terms.items()}
