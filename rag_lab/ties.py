"""What a metric is worth when scores tie.

Documents with equal scores have no order. trec_eval sorts them by id, which
makes a score depend on names. Here are the three honest alternatives: the mean
over all orders of the tied documents (in closed form, not by sampling), the
best order and the worst.

A ranking with ties is a list of groups, each a list of grades (None = unjudged).

References
----------
McSherry & Najork (2008), "Computing information retrieval performance measures
efficiently in the presence of tied scores", ECIR.
"""

import math
from itertools import groupby

from rag_lab.gain import dcg, discount_weights, gains


def group_grades(grades, scores):
    """Split grades in rank order into groups of equal score."""
    pairs = zip(scores, grades, strict=True)
    return [[grade for _, grade in group] for _, group in groupby(pairs, key=lambda pair: pair[0])]


def extreme_order(groups, rule, best):
    """Return the grades in the order that makes `rule` largest or smallest."""
    key = _is_judged if rule == "judged" else _grade_or_lowest
    return [grade for group in groups for grade in sorted(group, key=key, reverse=best)]


def _is_judged(grade):
    return grade is not None


def _grade_or_lowest(grade):
    return -math.inf if grade is None else grade


def _count(group, rel_level):
    return sum(grade is not None and grade >= rel_level for grade in group)


def _places(groups, k):
    """Yield ``(documents before the group, group, its places up to the cutoff k)``."""
    before = 0
    for group in groups:
        cutoff = before + len(group) if k is None else k
        yield before, group, min(max(cutoff - before, 0), len(group))
        before += len(group)


def _expected_relevant(groups, k, rel_level):
    """Expected number of relevant documents in the first k places."""
    return math.fsum(_count(group, rel_level) * places / len(group) for _, group, places in _places(groups, k))


def _expected_precision(groups, judged, k, rel_level):
    returned = sum(map(len, groups)) if k is None else k
    return _expected_relevant(groups, k, rel_level) / returned if returned else 0.0


def _expected_recall(groups, judged, k, rel_level):
    total = _count(judged, rel_level)
    return _expected_relevant(groups, k, rel_level) / total if total else 0.0


def _expected_judged(groups, judged, k, rel_level):
    returned = sum(map(len, groups)) if k is None else min(k, sum(map(len, groups)))
    count = math.fsum(sum(map(_is_judged, group)) * places / len(group) for _, group, places in _places(groups, k))
    return count / returned if returned else 0.0


def _expected_hit(groups, judged, k, rel_level):
    """1 minus the chance that no relevant document falls into the first k places."""
    missed = 1.0
    for _, group, places in _places(groups, k):
        relevant = _count(group, rel_level)
        missed *= math.comb(len(group) - relevant, places) / math.comb(len(group), places)
    return 1.0 - missed


def _expected_reciprocal_rank(groups, judged, k, rel_level):
    for before, group, places in _places(groups, k):
        size, relevant = len(group), _count(group, rel_level)
        if relevant:
            # The first of `relevant` lies at place j in C(size − j, relevant − 1) of all arrangements.
            arrangements = math.comb(size, relevant)
            return math.fsum(
                math.comb(size - place, relevant - 1) / arrangements / (before + place)
                for place in range(1, places + 1)
            )
    return 0.0


def _expected_average_precision(groups, judged, k, rel_level):
    total = _count(judged, rel_level)
    found, terms = 0, []
    for before, group, places in _places(groups, k):
        size, relevant = len(group), _count(group, rel_level)
        if relevant:
            # Given a relevant document at a place, each earlier place of its group
            # holds another one with probability (relevant − 1) / (size − 1).
            others = (relevant - 1) / (size - 1) if size > 1 else 0.0
            terms += [
                relevant / size * (found + 1 + (place - 1) * others) / (before + place)
                for place in range(1, places + 1)
            ]
        found += relevant
    return math.fsum(terms) / total if total else 0.0


def _expected_ndcg(groups, judged, k, rel_level, gain="linear", discount="log2"):
    weights = discount_weights(sum(map(len, groups)), discount)
    expected = math.fsum(
        math.fsum(gains(group, gain)) / len(group) * math.fsum(weights[before : before + places])
        for before, group, places in _places(groups, k)
    )
    ideal = dcg(sorted(judged, reverse=True), k, gain, discount)
    return expected / ideal if ideal else 0.0


EXPECTED = {
    "precision": _expected_precision,
    "recall": _expected_recall,
    "hit": _expected_hit,
    "mrr": _expected_reciprocal_rank,
    "map": _expected_average_precision,
    "ndcg": _expected_ndcg,
    "judged": _expected_judged,
}
