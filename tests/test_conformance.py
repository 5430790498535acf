"""Random judged runs: the same numbers as pytrec_eval and ir_measures, where their rules are ours.

Deviations, each handled below and shown in the book's edge-case page:

- pytrec_eval and ir_measures compare scores as float32: the runs here have
  scores that float32 holds exactly, so that only true ties tie;
- they leave out judged queries that the run does not answer: counted as 0 here;
- pytrec_eval never returns from a query that has negative grades alone: it gets one zero more.
"""

import random

import pytest

from rag_lab.metrics import evaluate

PYTREC = {
    "map": "map", "mrr": "recip_rank", "ndcg": "ndcg", "precision@5": "P_5", "precision@10": "P_10", "recall@5": "recall_5",
    "recall@10": "recall_10", "ndcg@5": "ndcg_cut_5", "ndcg@10": "ndcg_cut_10", "map@10": "map_cut_10", "hit@5": "success_5",
}  # fmt: skip
MEASURES = {"map", "recip_rank", "ndcg", "P", "recall", "ndcg_cut", "map_cut", "success"}


def random_case(seed):
    """Return random (qrels, run) with graded, unjudged and missing things."""
    rng = random.Random(seed)
    documents = [f"d{i}" for i in range(rng.randint(1, 30))]
    qrels, run = {}, {}
    for number in range(rng.randint(1, 4)):
        judged = rng.sample(documents, rng.randint(1, len(documents)))
        qrels[f"q{number}"] = {doc_id: rng.randint(-1, 3) for doc_id in judged}
        if number == 0 or rng.random() < 0.8:
            found = rng.sample(documents, rng.randint(1, len(documents)))
            scores = [rng.randint(0, 8) / 4 for _ in found]
            run[f"q{number}"] = dict(zip(found, scores, strict=True))
    return qrels, run


def with_a_zero(qrels):
    """Add a judged document of grade 0: pytrec_eval never returns from a query with negative grades alone."""
    return {query_id: {**grades, "zero": 0} for query_id, grades in qrels.items()}


def compare_with_pytrec_eval(seed):
    import pytrec_eval

    qrels, run = random_case(seed)
    theirs = pytrec_eval.RelevanceEvaluator(with_a_zero(qrels), MEASURES).evaluate(run)
    ours = evaluate(qrels, run, list(PYTREC)).per_query
    for query_id, values in ours.items():
        for name, measure in PYTREC.items():
            assert values[name] == pytest.approx(theirs.get(query_id, {}).get(measure, 0.0), abs=1e-9), (
                seed,
                query_id,
                name,
            )
    return len(ours) * len(PYTREC)


@pytest.mark.parametrize("block", range(10))
def test_two_thousand_runs_equal_pytrec_eval(block):
    values = sum(compare_with_pytrec_eval(seed) for seed in range(block * 200, block * 200 + 200))
    assert values > 200 * len(PYTREC)


@pytest.mark.parametrize("rel_level", [1, 2, 3])
def test_relevance_levels_equal_pytrec_eval(rel_level):
    import pytrec_eval

    for seed in range(100):
        qrels, run = random_case(seed)
        theirs = pytrec_eval.RelevanceEvaluator(with_a_zero(qrels), MEASURES, relevance_level=rel_level)
        theirs = theirs.evaluate(run)
        for query_id, values in evaluate(qrels, run, list(PYTREC), rel_level).per_query.items():
            for name, measure in PYTREC.items():
                assert values[name] == pytest.approx(theirs.get(query_id, {}).get(measure, 0.0), abs=1e-9), (seed, name)


def test_random_runs_equal_ir_measures():
    import ir_measures
    from ir_measures import AP, RR, P, R, Success, nDCG

    names = {
        "precision@5": P @ 5,
        "recall@10": R @ 10,
        "ndcg@10": nDCG @ 10,
        "map": AP,
        "mrr": RR,
        "hit@5": Success @ 5,
    }
    for seed in range(300):
        qrels, run = random_case(seed)
        theirs = {
            (m.query_id, str(m.measure)): m.value
            for m in ir_measures.iter_calc(list(names.values()), with_a_zero(qrels), run)
        }
        for query_id, values in evaluate(qrels, run, list(names)).per_query.items():
            for name, measure in names.items():
                assert values[name] == pytest.approx(theirs.get((query_id, str(measure)), 0.0), abs=1e-9), (seed, name)
