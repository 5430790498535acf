"""Scores over all orders of tied documents, against brute force."""

from fractions import Fraction
from itertools import groupby, permutations, product

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rag_lab.metrics import RULES, evaluate

METRICS = [name for rule in RULES for name in (rule, f"{rule}@1", f"{rule}@2", f"{rule}@4", f"{rule}@9")]


def all_orders(results):
    """Yield every ranking of the documents that keeps higher scores before lower ones."""
    ordered = sorted(results.items(), key=lambda item: -item[1])
    groups = [[doc_id for doc_id, _ in group] for _, group in groupby(ordered, key=lambda item: item[1])]
    for choice in product(*(permutations(group) for group in groups)):
        yield [doc_id for group in choice for doc_id in group]


def brute_force(judgements, results, metric, **options):
    """Return (mean, best, worst) of a metric over all orders."""
    values = [
        evaluate({"q": judgements}, {"q": order}, [metric], **options).metrics[metric] for order in all_orders(results)
    ]
    return float(sum(map(Fraction, values)) / len(values)), max(values), min(values)


def test_worked_example():
    qrels, run = {"q": {"m": 1}}, {"q": {"a": 2.0, "m": 2.0, "z": 2.0}}
    found = {
        ties: evaluate(qrels, run, ["mrr"], ties=ties).metrics["mrr"] for ties in ("id", "expected", "best", "worst")
    }
    assert found == {"id": 0.5, "expected": pytest.approx(11 / 18), "best": 1.0, "worst": pytest.approx(1 / 3)}


@st.composite
def judged_results(draw):
    """Up to 7 documents in at most 4 groups of equal score, with any grades."""
    n = draw(st.integers(1, 7))
    ids = [f"d{i}" for i in range(n)]
    results = {doc_id: float(draw(st.integers(0, 3))) for doc_id in ids}
    grades = st.one_of(st.none(), st.integers(-1, 3))
    judgements = {doc_id: draw(grades) for doc_id in [*ids, "unseen"]}
    return {doc_id: grade for doc_id, grade in judgements.items() if grade is not None}, results


@given(case=judged_results(), rel_level=st.integers(0, 3), metric=st.sampled_from(METRICS))
def test_expected_best_and_worst_equal_brute_force(case, rel_level, metric):
    judgements, results = case
    wanted = dict(
        zip(("expected", "best", "worst"), brute_force(judgements, results, metric, rel_level=rel_level), strict=True)
    )
    for ties, value in wanted.items():
        found = evaluate({"q": judgements}, {"q": results}, [metric], rel_level, ties=ties).metrics[metric]
        assert found == pytest.approx(value, abs=1e-12), ties


@pytest.mark.parametrize("gain", ["linear", "exp2"])
@pytest.mark.parametrize("discount", ["log2", "method0"])
def test_other_gains_and_discounts_equal_brute_force(gain, discount):
    judgements, results = {"a": 3, "b": 1, "c": 0, "x": 2}, {"a": 1.0, "b": 1.0, "c": 1.0, "d": 2.0, "e": 2.0}
    options = {"gain": gain, "discount": discount}
    for metric in ("ndcg", "ndcg@2", "ndcg@3"):
        mean, best, worst = brute_force(judgements, results, metric, **options)
        for ties, value in (("expected", mean), ("best", best), ("worst", worst)):
            found = evaluate({"q": judgements}, {"q": results}, [metric], ties=ties, **options).metrics[metric]
            assert found == pytest.approx(value, abs=1e-12)


@given(case=judged_results(), metric=st.sampled_from(METRICS))
def test_without_ties_all_four_agree(case, metric):
    judgements, results = case
    distinct = {doc_id: float(rank) for rank, doc_id in enumerate(results)}
    values = {
        evaluate({"q": judgements}, {"q": distinct}, [metric], ties=ties).metrics[metric]
        for ties in ("id", "best", "worst")
    }
    assert len(values) == 1
    expected = evaluate({"q": judgements}, {"q": distinct}, [metric], ties="expected").metrics[metric]
    assert expected == pytest.approx(values.pop(), abs=1e-12)


def test_forty_ties_need_no_enumeration():
    results = {f"d{i:02}": 1.0 for i in range(40)}
    found = evaluate({"q": {"d07": 1}}, {"q": results}, ["mrr", "recall@10"], ties="expected").metrics
    assert found["mrr"] == pytest.approx(sum(1 / rank for rank in range(1, 41)) / 40)
    assert found["recall@10"] == pytest.approx(0.25)
