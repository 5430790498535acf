"""The metric rules: worked values, policies, bad input."""

import math

import numpy as np
import pytest

from rag_lab.errors import InputError, OptionError
from rag_lab.metrics import (
    RULES,
    average_precision,
    evaluate,
    hit_at_k,
    judged_at_k,
    ndcg_at_k,
    parse_metric,
    precision_at_k,
    recall_at_k,
    reciprocal_rank,
)

ABCD = {"a": 3, "b": 2, "c": 0, "d": 1}


def one(judgements, results, metric, **options):
    """Score one query through `evaluate`."""
    return evaluate({"q": judgements}, {"q": results}, [metric], **options).metrics[metric]


def test_recall_is_not_hit_rate():
    relevant = {"a", "b", "c", "d"}
    assert recall_at_k(["d"], relevant, 1) == 0.25
    assert hit_at_k(["d"], relevant, 1) == 1.0
    assert hit_at_k(["x", "d"], relevant, 1) == 0.0
    assert recall_at_k(["x", "d", "a"], relevant, 3) == 0.5


def test_precision_is_divided_by_k_even_when_fewer_came_back():
    assert precision_at_k(["a", "x"], {"a", "b"}, 5) == pytest.approx(0.2)
    assert precision_at_k(["a"], {"a"}, 3) == pytest.approx(1 / 3)
    assert precision_at_k(["a", "x"], {"a"}) == 0.5
    assert precision_at_k([], {"a"}) == 0.0


def test_average_precision_counts_what_was_not_returned():
    assert average_precision(["a", "x", "y"], {"a", "b", "c"}) == pytest.approx(1 / 3)
    assert average_precision(["a", "x", "b"], {"a", "b"}) == pytest.approx((1 + 2 / 3) / 2)
    assert average_precision(["a", "x", "b"], {"a", "b"}, 2) == pytest.approx(0.5)


def test_reciprocal_rank():
    assert reciprocal_rank(["x", "a", "b"], {"a", "b"}) == 0.5
    assert reciprocal_rank(["x", "a"], {"a"}, 1) == 0.0
    assert reciprocal_rank([], {"a"}) == 0.0


def test_judged():
    assert judged_at_k(["a", "x", "c"], ABCD, 3) == pytest.approx(2 / 3)
    assert judged_at_k(["a"], ABCD, 5) == 1.0
    assert judged_at_k([], ABCD, 5) == 0.0


@pytest.mark.parametrize(
    ("k", "gain", "value"),
    [(None, "linear", 0.579996), (10, "linear", 0.579996), (2, "linear", 0.296082), (None, "exp2", 0.574141)],
)
def test_ndcg_worked_example(k, gain, value):
    assert ndcg_at_k(["c", "b", "a"], ABCD, k, gain=gain) == pytest.approx(value, abs=5e-7)
    name = "ndcg" if k is None else f"ndcg@{k}"
    assert one(ABCD, ["c", "b", "a"], name, gain=gain) == pytest.approx(value, abs=5e-7)


def test_ndcg_ideal_is_cut_at_k_and_holds_only_what_is_relevant():
    assert ndcg_at_k(list("abxyz"), {"a", "b"}, 5) == 1.0
    assert ndcg_at_k(list("a"), {"a", "b", "c"}, 1) == 1.0


def test_ndcg_ideal_holds_what_was_not_returned():
    # The best document is missing: the ranking is not perfect.
    assert ndcg_at_k(["d"], ABCD, 1) == pytest.approx(1 / 3)


def test_ndcg_by_hand():
    ideal = 3 / math.log2(2) + 2 / math.log2(3) + 1 / math.log2(4)
    assert ndcg_at_k(["b", "a"], ABCD) == pytest.approx((2 + 3 / math.log2(3)) / ideal)


def test_ndcg_method0_discounts():
    ideal = 3 + 2 / math.log2(2) + 1 / math.log2(3)
    assert ndcg_at_k(["b", "a"], ABCD, discount="method0") == pytest.approx((2 + 3 / math.log2(2)) / ideal)
    # Ranks 1 and 2 weigh the same, so swapping them changes nothing.
    assert ndcg_at_k(["a", "b"], ABCD, discount="method0") == ndcg_at_k(["b", "a"], ABCD, discount="method0")


def test_negative_grades_give_no_gain():
    with_negative = {"a": 2, "b": -3}
    assert ndcg_at_k(["b", "a"], with_negative) == ndcg_at_k(["x", "a"], {"a": 2})
    assert ndcg_at_k(["b", "a"], with_negative, gain="exp2") == ndcg_at_k(["x", "a"], {"a": 2}, gain="exp2")
    assert precision_at_k(["b"], with_negative, 1) == 0.0


def test_rel_level_moves_every_metric_but_ndcg():
    assert recall_at_k(["a", "d"], ABCD, rel_level=2) == 0.5
    assert precision_at_k(["a", "d"], ABCD, 2, rel_level=2) == 0.5
    assert hit_at_k(["d"], ABCD, rel_level=2) == 0.0
    assert reciprocal_rank(["d", "b"], ABCD, rel_level=2) == 0.5
    assert average_precision(["d", "b"], ABCD, rel_level=2) == 0.25
    assert one(ABCD, ["d", "b"], "ndcg", rel_level=2) == one(ABCD, ["d", "b"], "ndcg")


@pytest.mark.parametrize(
    ("judged", "results", "value"),
    [
        ({"m": 1}, {"a": 2.0, "m": 2.0, "z": 2.0}, 0.5),
        ({"zz": 1}, {"a": 2.0, "zz": 2.0, "z": 2.0}, 1.0),
        ({"é": 1}, {"z": 1.0, "é": 1.0}, 1.0),  # by code point, é comes after z
        ({"a": 1}, {"a": 0.50000001, "b": 0.5}, 1.0),  # equal in float32, not in float64
        ({"a": 1}, {"a": 16777217.0, "b": 16777216.0}, 1.0),
    ],
)
def test_order_of_equal_and_nearly_equal_scores(judged, results, value):
    assert one(judged, results, "mrr") == value


def test_forty_equal_scores_come_in_descending_order_of_ids():
    results = {f"d{i:02}": 1.0 for i in range(40)}
    for rank, doc_id in enumerate(sorted(results, reverse=True), start=1):
        assert one({doc_id: 1}, results, "mrr") == 1 / rank


QRELS = {"q1": {"a": 1}, "q2": {}, "q3": {"b": 1}}
RUN = {"q1": {"a": 2.0, "x": 1.0}, "q2": {"a": 1.0}, "q3": {"b": 2.0, "x": 1.0}}


@pytest.mark.parametrize("empty", [{}, {"a": 0}, {"a": -1}])
@pytest.mark.parametrize("metric", ["recall@1", "mrr", "map", "ndcg@5", "precision@1", "hit@1"])
def test_policy_for_queries_without_a_relevant_document(empty, metric):
    qrels = {**QRELS, "q2": empty}
    zero = evaluate(qrels, RUN, [metric])
    assert (zero.per_query["q1"][metric], zero.per_query["q2"][metric]) == (1.0, 0.0)
    assert zero.metrics[metric] == pytest.approx(2 / 3)
    assert zero.no_relevant == ["q2"]
    skip = evaluate(qrels, RUN, [metric], no_relevant="skip")
    assert skip.metrics[metric] == 1.0
    assert "q2" not in skip.per_query
    assert skip.queries["judged"] == 2
    with pytest.raises(InputError, match="q2"):
        evaluate(qrels, RUN, [metric], no_relevant="error")


def test_missing_queries_count_zero_and_are_reported():
    qrels = {f"q{i}": {"a": 1} for i in range(4)}
    evaluation = evaluate(qrels, {"q0": ["a"]}, ["recall@1", "mrr", "ndcg@3"])
    assert set(evaluation.metrics.values()) == {0.25}
    assert evaluation.queries == {"judged": 4, "answered": 1, "missing": 3, "unanswerable": 0, "ignored": 0}


def test_queries_only_in_the_run_are_ignored_and_reported():
    evaluation = evaluate({"q": {"a": 1}}, {"q": ["a"], "extra": ["a"]}, ["mrr"])
    assert evaluation.metrics["mrr"] == 1.0
    assert evaluation.queries["ignored"] == 1


@pytest.mark.parametrize("results", [["a"], {"a": 1.0}, [("a", 1.0)]])
def test_a_run_that_shares_no_query_is_an_error_with_samples(results):
    with pytest.raises(InputError) as caught:
        evaluate({"q1": {"a": 1}}, {"Q1": results})
    assert "'Q1'" in str(caught.value)
    assert "'q1'" in str(caught.value)


@pytest.mark.parametrize("run", [{}, {"q1": []}, {"q1": {}}, {"Q1": []}])
def test_a_run_without_results_scores_zeros(run):
    assert set(evaluate({"q1": {"a": 1}}, run).metrics.values()) == {0.0}


@pytest.mark.parametrize(
    ("qrels", "run"),
    [
        ({"q": {"a": 1}}, {"q": ["a", "a", "b"]}),
        ({"q": {"a": 1}}, {"q": [("a", 2.0), ("a", 1.0)]}),
        ({"q": {"a": 1}}, {"q": {"a": math.nan}}),
        ({"q": {"a": 1}}, {"q": {"a": math.inf}}),
        ({"q": {"a": 1}}, {"q": {"a": "1.0"}}),
        ({"q": {"a": 1}}, {"q": {"a": True}}),
        ({"q": {"a": 1}}, {"q": {"a": 10**400}}),
        ({"q": {"a": 1}}, {"q": {7: 1.0}}),
        ({"q": {"a": 1}}, {"q": {"": 1.0}}),
        ({"q": {"a": 1}}, {"q": "abc"}),
        ({"q": {"a": 1}}, {"q": ["a", ("b", 1.0)]}),
        ({"q": {"a": 1}}, {"q": [("a", 1.0, 2)]}),
        ({7: {"a": 1}}, {"q": ["a"]}),
        ({"q": {7: 1}}, {"q": ["a"]}),
        ({"q": {"a": 1.0}}, {"q": ["a"]}),
        ({"q": {"a": True}}, {"q": ["a"]}),
        ({"q": {"a": "1"}}, {"q": ["a"]}),
        ({"q": ["a"]}, {"q": ["a"]}),
        ([("q", "a")], {"q": ["a"]}),
    ],
)
def test_bad_input_is_an_error(qrels, run):
    with pytest.raises(InputError, match="expected"):
        evaluate(qrels, run)


@pytest.mark.parametrize(
    "name", ["ndcg@0", "ndcg@-1", "ndcg@", "ndcg@1.5", "ndcg@ 5", "ndcg@５", "NDCG@5", "p@5", "", "ndcg@5@5"]
)
def test_bad_metric_names(name):
    with pytest.raises(OptionError, match="expected"):
        parse_metric(name)


@pytest.mark.parametrize("k", [0, -1, 1.0, True, "5"])
@pytest.mark.parametrize(
    "function", [precision_at_k, recall_at_k, hit_at_k, reciprocal_rank, average_precision, judged_at_k, ndcg_at_k]
)
def test_bad_cutoffs(function, k):
    with pytest.raises(OptionError, match="k is"):
        function(["a"], {"a": 1}, k)


@pytest.mark.parametrize(
    "options",
    [{"no_relevant": "x"}, {"ties": "x"}, {"gain": "x"}, {"discount": "x"}, {"depth": 0}, {"depth": 1.5}],
)
def test_bad_options(options):
    with pytest.raises(OptionError, match="expected"):
        evaluate({"q": {"a": 1}}, {"q": ["a"]}, **options)


def test_rankings_with_duplicates_are_errors_for_every_function():
    for function in (precision_at_k, recall_at_k, hit_at_k, reciprocal_rank, average_precision, judged_at_k, ndcg_at_k):
        with pytest.raises(InputError, match="twice"):
            function(["a", "a", "b"], {"a": 1}, 2)


def test_numpy_numbers_are_accepted():
    qrels = {"q": {"a": np.int64(2), "b": np.int32(1)}}
    run = {"q": {"a": np.float32(0.5), "b": np.float64(0.25)}}
    assert evaluate(qrels, run, ["ndcg@10"]).metrics["ndcg@10"] == 1.0


def test_inputs_are_not_changed_and_twice_is_the_same():
    qrels, run = {"q": {"b": 1, "a": 0}}, {"q": {"b": 1.0, "a": 2.0, "c": 2.0}}
    first = evaluate(qrels, run, list(RULES))
    assert evaluate(qrels, run, list(RULES)) == first
    assert (list(qrels["q"]), list(run["q"])) == (["b", "a"], ["b", "a", "c"])


def test_depth_cuts_before_scoring():
    run = {"q": {"x": 3.0, "y": 2.0, "a": 1.0}}
    assert evaluate({"q": {"a": 1}}, run, ["recall"], depth=2).metrics["recall"] == 0.0
    assert evaluate({"q": {"a": 1}}, run, ["recall"], depth=3).metrics["recall"] == 1.0
