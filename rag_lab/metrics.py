"""Ranking metrics under one stated set of rules.

The rules are those of trec_eval with every judged query counted (``-c``):

- a ranking is ordered by score, descending; equal scores by document id, descending;
- Precision@k is divided by k, Recall@k by all documents whose grade reaches `rel_level`;
- NDCG@k has linear gain, discount 1/log2(rank + 1), and an ideal made of *all*
  judged documents, cut at k;
- a judged query without results counts 0; a negative grade gives no gain.

A metric is named ``name@k``, or ``name`` for the whole ranking.
"""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from rag_lab import ties as tie_scores
from rag_lab.errors import InputError, OptionError
from rag_lab.gain import DISCOUNTS, GAINS, dcg

DEFAULT_METRICS = ("recall@5", "precision@3", "ndcg@10")
NO_RELEVANT = ("zero", "skip", "error")
TIES = ("id", "expected", "best", "worst")


# One query: public functions. Each checks its input, then calls its rule below.


def precision_at_k(ranking, judgements, k=None, rel_level=1):
    """Share of the first k places that hold a relevant document.

    Divided by k, also when fewer than k were returned: an empty place is not a
    relevant document. Dividing by the number returned would reward a system for
    returning less.

    Parameters
    ----------
    ranking : sequence of str
        Document ids, best first, without duplicates.
    judgements : mapping of str to int, or set of str
        Grades by document id; a set means grade 1 each.
    k : int, optional
        Cutoff ≥ 1; without it, the number of documents returned.
    rel_level : int
        The lowest grade that counts as relevant.

    Returns
    -------
    float
        In [0, 1].

    Examples
    --------
    >>> precision_at_k(["a", "x"], {"a": 1, "b": 1}, k=4)
    0.25
    """
    return _precision(*_prepare(ranking, judgements, k), k, rel_level)


def recall_at_k(ranking, judgements, k=None, rel_level=1):
    """Share of all relevant documents that stand in the first k places.

    Parameters and errors as `precision_at_k`. With no relevant document the
    value is 0, as in trec_eval; `evaluate` offers other policies.

    Examples
    --------
    >>> recall_at_k(["d"], {"a", "b", "c", "d"}, k=1)
    0.25
    """
    return _recall(*_prepare(ranking, judgements, k), k, rel_level)


def hit_at_k(ranking, judgements, k=None, rel_level=1):
    """1.0 if any of the first k documents is relevant, else 0.0.

    Many libraries call this recall; it is recall only where exactly one
    document is relevant. Parameters as `precision_at_k`.
    """
    return _hit(*_prepare(ranking, judgements, k), k, rel_level)


def reciprocal_rank(ranking, judgements, k=None, rel_level=1):
    """1 / rank of the first relevant document, 0.0 if there is none in the first k.

    Parameters as `precision_at_k`. Its mean over queries is MRR.
    """
    return _reciprocal_rank(*_prepare(ranking, judgements, k), k, rel_level)


def average_precision(ranking, judgements, k=None, rel_level=1):
    """Precision at the rank of each relevant document, averaged over *all* relevant ones.

    A relevant document that was not returned contributes 0. Parameters as
    `precision_at_k`. Its mean over queries is MAP.
    """
    return _average_precision(*_prepare(ranking, judgements, k), k, rel_level)


def judged_at_k(ranking, judgements, k=None):
    """Share of the documents returned in the first k places that have any judgement.

    Below about 0.9, differences between systems may come from missing labels.
    Divided by the number returned: 0.0 for an empty ranking.
    """
    return _judged(*_prepare(ranking, judgements, k), k, 1)


def ndcg_at_k(ranking, judgements, k=None, gain="linear", discount="log2"):
    """Discounted gain of the ranking, divided by that of the best possible ranking.

    ``DCG = Σ gain(grade at rank i) · discount(i)``, summed over ranks 1 … k. The ideal
    sorts the grades of all judged documents, returned or not.

    Parameters
    ----------
    ranking, judgements, k
        As for `precision_at_k`.
    gain : {"linear", "exp2"}
        The grade itself, or ``2**grade - 1``. Negative grades give 0.
    discount : {"log2", "method0"}
        ``1/log2(i + 1)``, or 1 at rank 1 and ``1/log2(i)`` from rank 2 on (ranks
        1 and 2 then weigh the same).

    Returns
    -------
    float
        In [0, 1]; 0.0 when no document has a positive grade.

    References
    ----------
    Järvelin & Kekäläinen (2002), "Cumulated gain-based evaluation of IR
    techniques"; trec_eval's ``ndcg`` and ``ndcg_cut``; Burges et al. (2005) for exp2.

    Examples
    --------
    >>> round(ndcg_at_k(["c", "b", "a"], {"a": 3, "b": 2, "c": 0, "d": 1}), 6)
    0.579996
    """
    _check_choice("gain", gain, GAINS)
    _check_choice("discount", discount, DISCOUNTS)
    grades, judged = _prepare(ranking, judgements, k)
    return _ndcg(grades, judged, k, gain=gain, discount=discount)


# The rules themselves. `grades`: grades in rank order, None for unjudged.
# `judged`: the grades of all judged documents.


def _relevant(grades, rel_level):
    return [grade is not None and grade >= rel_level for grade in grades]


def _precision(grades, judged, k, rel_level):
    places = len(grades) if k is None else k
    return sum(_relevant(grades[:k], rel_level)) / places if places else 0.0


def _recall(grades, judged, k, rel_level):
    total = sum(_relevant(judged, rel_level))
    return sum(_relevant(grades[:k], rel_level)) / total if total else 0.0


def _hit(grades, judged, k, rel_level):
    return float(any(_relevant(grades[:k], rel_level)))


def _reciprocal_rank(grades, judged, k, rel_level):
    relevant = _relevant(grades[:k], rel_level)
    return 1.0 / (relevant.index(True) + 1) if True in relevant else 0.0


def _average_precision(grades, judged, k, rel_level):
    total = sum(_relevant(judged, rel_level))
    found, precisions = 0, []
    for rank, relevant in enumerate(_relevant(grades[:k], rel_level), start=1):
        if relevant:
            found += 1
            precisions.append(found / rank)
    return math.fsum(precisions) / total if total else 0.0


def _judged(grades, judged, k, rel_level):
    top = grades[:k]
    return sum(grade is not None for grade in top) / len(top) if top else 0.0


def _ndcg(grades, judged, k, rel_level=1, gain="linear", discount="log2"):
    ideal = dcg(sorted(judged, reverse=True), k, gain, discount)
    return dcg(grades, k, gain, discount) / ideal if ideal else 0.0


RULES = {
    "precision": _precision,
    "recall": _recall,
    "hit": _hit,
    "mrr": _reciprocal_rank,
    "map": _average_precision,
    "ndcg": _ndcg,
    "judged": _judged,
}


# Many queries.


@dataclass(frozen=True)
class Evaluation:
    """What `evaluate` returns.

    Attributes
    ----------
    metrics : dict of str to float
        Averages over the counted queries.
    per_query : dict of str to dict
        ``{query_id: {metric: value}}`` of the counted queries.
    queries : dict of str to int
        ``judged``: queries that count; ``answered`` of them have results,
        ``missing`` have none and count 0; ``ignored`` are only in the run, or
        left out by a policy; ``unanswerable`` are scored apart.
    no_relevant : list of str
        Queries with no document that reaches `rel_level`.
    abstention : float or None
        Share of the unanswerable queries for which nothing was returned.
    """

    metrics: dict
    per_query: dict
    queries: dict
    no_relevant: list
    abstention: float | None = None


def evaluate(
    qrels,
    run,
    metrics=DEFAULT_METRICS,
    rel_level=1,
    depth=None,
    no_relevant="zero",
    ties="id",
    gain="linear",
    discount="log2",
):
    """Score a run against judgements.

    Parameters
    ----------
    qrels : mapping
        ``{query_id: {doc_id: grade}}`` with integer grades.
    run : mapping
        ``{query_id: {doc_id: score}}``, ``{query_id: [(doc_id, score), …]}`` or
        ``{query_id: [doc_id, …]}`` with the best first.
    metrics : sequence of str
        Names such as ``"recall@5"``; `RULES` lists them.
    rel_level : int
        The lowest grade that counts as relevant (trec_eval's ``-l``; NDCG ignores it).
    depth : int, optional
        Use at most so many documents a query (trec_eval's ``-M``).
    no_relevant : {"zero", "skip", "error"}
        What a query with no relevant document counts.
    ties : {"id", "expected", "best", "worst"}
        Equal scores: ordered by id as trec_eval does, or the mean, largest or
        smallest value over all their orders. An order given as a list of ids has no ties.
    gain, discount
        As in `ndcg_at_k`.

    Returns
    -------
    Evaluation

    Raises
    ------
    InputError
        Duplicate documents, scores that are no finite numbers, grades that are no
        integers, ids that are no strings, a run that shares no query with the
        qrels, or an unknown metric. Inputs are never changed.
    """
    parsed = {name: parse_metric(name) for name in metrics}
    _check_choice("no_relevant", no_relevant, NO_RELEVANT)
    _check_choice("ties", ties, TIES)
    _check_choice("gain", gain, GAINS)
    _check_choice("discount", discount, DISCOUNTS)
    check_integer("rel_level", rel_level)
    if depth is not None:
        check_cutoff(depth, "depth")
    check_qrels(qrels)
    check_overlap(qrels, run)
    per_query, empty, answered = {}, [], 0
    for query_id, judgements in qrels.items():
        scores = score_pairs(run.get(query_id, ()), query_id)
        ranking = order_by_score(scores)[:depth]
        if not any(grade >= rel_level for grade in judgements.values()):
            empty.append(query_id)
            if no_relevant == "skip":
                continue
        answered += bool(ranking)
        per_query[query_id] = _score_query(ranking, judgements, parsed, rel_level, ties, gain, discount)
    if empty and no_relevant == "error":
        raise InputError(
            f"{len(empty)} queries have no relevant document: {_sample(empty)}; expected at least one each"
        )
    counts = {
        "judged": len(per_query),
        "answered": answered,
        "missing": len(per_query) - answered,
        "unanswerable": 0,
        "ignored": sum(query not in qrels for query in run) + len(qrels) - len(per_query),
    }
    return Evaluation(average(per_query, metrics), per_query, counts, empty)


def average(per_query, metrics):
    """Return the mean of each metric over the queries; 0.0 where there are none."""
    count = max(len(per_query), 1)
    return {name: math.fsum(values[name] for values in per_query.values()) / count for name in metrics}


def _score_query(ranking, judgements, parsed, rel_level, ties, gain, discount):
    """Score one checked ranking of (doc_id, score) pairs."""
    judged = list(judgements.values())
    grades = [judgements.get(doc_id) for doc_id, _ in ranking]
    values = {}
    for name, (rule, k) in parsed.items():
        options = {"gain": gain, "discount": discount} if rule == "ndcg" else {}
        if ties == "id":
            values[name] = RULES[rule](grades, judged, k, rel_level, **options)
        elif ties == "expected":
            groups = tie_scores.group_grades(grades, [score for _, score in ranking])
            values[name] = tie_scores.EXPECTED[rule](groups, judged, k, rel_level, **options)
        else:
            groups = tie_scores.group_grades(grades, [score for _, score in ranking])
            ordered = tie_scores.extreme_order(groups, rule, best=ties == "best")
            values[name] = RULES[rule](ordered, judged, k, rel_level, **options)
    return values


def parse_metric(name):
    """Return ``(rule, cutoff)`` of a metric's name; the cutoff is None without ``@k``.

    Examples
    --------
    >>> parse_metric("ndcg@10")
    ('ndcg', 10)
    """
    rule, at, cutoff = str(name).partition("@")
    if rule not in RULES:
        raise OptionError(f"unknown metric {name!r}; expected one of {', '.join(RULES)}, with or without @k")
    if not at:
        return rule, None
    return rule, parse_cutoff(name, cutoff)


def parse_cutoff(name, digits):
    """Return the cutoff of a metric's name as an integer ≥ 1."""
    if not (digits.isascii() and digits.isdigit() and len(digits) < 10 and int(digits) >= 1):
        raise OptionError(f"metric {name!r} has cutoff {digits!r}; expected an integer ≥ 1")
    return int(digits)


def score_pairs(results, query_id):
    """Return checked ``(doc_id, score)`` pairs of one query's results.

    A list of ids gets scores that keep its order.
    """
    if isinstance(results, Mapping):
        pairs = list(results.items())
    elif isinstance(results, str) or not isinstance(results, Iterable):
        raise InputError(f"results of query {query_id!r} are {results!r}; expected a mapping or a list")
    else:
        items = list(results)
        pairs = [(item, -rank) if isinstance(item, str) else item for rank, item in enumerate(items)]
        if any(isinstance(item, str) for item in items) and not all(isinstance(item, str) for item in items):
            raise InputError(f"results of query {query_id!r} mix ids and pairs; expected one of the two")
    seen = set()
    for pair in pairs:
        if not isinstance(pair, Sequence) or len(pair) != 2:
            raise InputError(f"result {pair!r} of query {query_id!r}; expected an id or (id, score)")
        doc_id, score = pair
        _check_id(doc_id, f"document id of query {query_id!r}")
        if doc_id in seen:
            raise InputError(f"document {doc_id!r} occurs twice for query {query_id!r}; expected every document once")
        seen.add(doc_id)
        check_score(score, f"document {doc_id!r}, query {query_id!r}")
    return [(doc_id, float(score)) for doc_id, score in pairs]


def order_by_score(pairs):
    """Return pairs by score descending, equal scores by id descending.

    Strings compare by code point, which is the byte order of UTF-8.
    """
    return sorted(sorted(pairs, key=lambda pair: pair[0], reverse=True), key=lambda pair: -pair[1])


# Checks shared by the functions above and by other modules.


def _prepare(ranking, judgements, k):
    """Check one query's input; return (grades in rank order, all judged grades)."""
    if k is not None:
        check_cutoff(k, "k")
    if isinstance(ranking, str):
        raise InputError(f"ranking is {ranking!r}; expected a sequence of document ids")
    if not isinstance(judgements, Mapping):
        judgements = dict.fromkeys(judgements, 1)
    check_qrels({"?": judgements})
    pairs = score_pairs([(doc_id, 0) for doc_id in ranking], "?")
    return [judgements.get(doc_id) for doc_id, _ in pairs], list(judgements.values())


def check_qrels(qrels):
    """Raise InputError unless qrels are ``{str: {str: int}}``."""
    if not isinstance(qrels, Mapping):
        raise InputError(f"qrels are {type(qrels).__name__}; expected a mapping of query id to grades")
    for query_id, judgements in qrels.items():
        _check_id(query_id, "query id of the qrels")
        if not isinstance(judgements, Mapping):
            raise InputError(f"judgements of query {query_id!r} are {judgements!r}; expected a mapping")
        for doc_id, grade in judgements.items():
            _check_id(doc_id, f"document id of query {query_id!r} in the qrels")
            check_integer(f"grade of document {doc_id!r} for query {query_id!r}", grade)


def check_overlap(qrels, run):
    """Raise InputError if a run with results answers none of the judged queries."""
    if not isinstance(run, Mapping):
        raise InputError(f"run is {type(run).__name__}; expected a mapping of query id to results")
    for query_id in run:
        _check_id(query_id, "query id of the run")
    with_results = [query_id for query_id, results in run.items() if len(results)]
    if with_results and not any(query_id in qrels for query_id in with_results):
        raise InputError(
            f"the run shares no query with the qrels: run has {_sample(with_results)}, "
            f"qrels have {_sample(qrels)}; expected the same query ids"
        )


def check_cutoff(k, name):
    """Raise OptionError unless `k` is an integer ≥ 1."""
    if not is_integer(k) or k < 1:
        raise OptionError(f"{name} is {k!r}; expected an integer ≥ 1")


def check_integer(name, value):
    """Raise InputError unless `value` is an integer."""
    if not is_integer(value):
        raise InputError(f"{name} is {value!r}; expected an integer")


def is_integer(value):
    """Whether `value` is an integer, NumPy's included; a bool is not."""
    return not isinstance(value, bool) and hasattr(value, "__index__")


def check_score(score, where):
    """Raise InputError unless `score` is a finite number."""
    try:
        finite = not isinstance(score, (str, bytes, bool)) and math.isfinite(score)
    except (TypeError, OverflowError):
        finite = False
    if not finite:
        raise InputError(f"score {score!r} of {where}; expected a finite number")


def _check_id(value, what):
    if not isinstance(value, str) or not value:
        raise InputError(f"{what} is {value!r}; expected a non-empty string")


def _check_choice(name, value, choices):
    if value not in choices:
        raise OptionError(f"{name} is {value!r}; expected one of {', '.join(choices)}")


def _sample(ids):
    shown = [repr(query_id) for query_id in list(ids)[:3]]
    return ", ".join(shown) + (" …" if len(ids) > 3 else "") if shown else "none"
