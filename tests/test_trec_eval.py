"""trec_eval's own test files: every measure that we share, per query and over all."""

import pytest

from rag_lab.metrics import evaluate
from rag_lab.trec import read_qrels, read_run

CUTOFFS = (5, 10, 15, 20, 30, 100, 200, 500, 1000)
# trec_eval's name → ours.
SHARED = {
    "map": "map",
    "recip_rank": "mrr",
    "ndcg": "ndcg",
    "set_P": "precision",
    "set_recall": "recall",
    **{f"P_{k}": f"precision@{k}" for k in CUTOFFS},
    **{f"recall_{k}": f"recall@{k}" for k in CUTOFFS},
    **{f"ndcg_cut_{k}": f"ndcg@{k}" for k in CUTOFFS},
    **{f"map_cut_{k}": f"map@{k}" for k in CUTOFFS},
    **{f"success_{k}": f"hit@{k}" for k in (1, 5, 10)},
}
FIXTURES = [
    # expected output, judgements, run, depth, relevance level
    ("out.test", "qrels.test", "results.test", None, 1),
    ("out.test.a", "qrels.test", "results.test", None, 1),
    ("out.test.aq", "qrels.test", "results.test", None, 1),
    ("out.test.aqc", "qrels.test", "results.trunc", None, 1),
    ("out.test.aqcM", "qrels.test", "results.trunc", 100, 1),
    ("out.test.aql", "qrels.rel_level", "results.test", None, 2),
]


def read_expected(path):
    """Return ``[(measure, query or "all", value), …]`` of the shared measures."""
    rows = [line.split() for line in path.read_text(encoding="utf-8").splitlines()]
    return [(name, query, value) for name, query, value in rows if name in SHARED]


@pytest.mark.parametrize(("expected", "qrels", "run", "depth", "rel_level"), FIXTURES)
def test_equals_expected_output(trec_eval_folder, expected, qrels, run, depth, rel_level):
    evaluation = evaluate(
        read_qrels(trec_eval_folder / qrels),
        read_run(trec_eval_folder / run),
        list(SHARED.values()),
        rel_level=rel_level,
        depth=depth,
    )
    rows = read_expected(trec_eval_folder / expected)
    assert len(rows) >= 10
    ours = {**evaluation.per_query, "all": evaluation.metrics}
    wrong = [
        (name, query, value, ours[query][SHARED[name]])
        for name, query, value in rows
        if f"{ours[query][SHARED[name]]:.4f}" != value
    ]
    assert wrong == []


@pytest.mark.parametrize(("expected", "qrels", "run", "depth", "rel_level"), FIXTURES)
def test_command_line_equals_expected_output(rag_lab, trec_eval_folder, expected, qrels, run, depth, rel_level):
    limit = ["--depth", depth] if depth else []
    answer = rag_lab(
        "score", trec_eval_folder / qrels, trec_eval_folder / run, "--metrics", *SHARED.values(),
        "--rel-level", rel_level, *limit, "--per-query", "--format", "json",
    ).json  # fmt: skip
    ours = {**answer["per_query"], "all": answer["metrics"]}
    for name, query, value in read_expected(trec_eval_folder / expected):
        assert f"{ours[query][SHARED[name]]:.4f}" == value, (name, query)


def test_reference_numbers(trec_eval_folder):
    names = ["map", "ndcg@10", "precision@5", "recall@100", "mrr"]
    run = read_run(trec_eval_folder / "results.test")
    metrics = evaluate(read_qrels(trec_eval_folder / "qrels.test"), run, names).metrics
    assert [round(metrics[name], 4) for name in names] == [0.1785, 0.3016, 0.2667, 0.4980, 0.4064]
    graded = evaluate(read_qrels(trec_eval_folder / "qrels.rel_level"), run, ["ndcg@10"]).metrics
    assert round(graded["ndcg@10"], 4) == 0.2656


def test_missing_queries_are_counted(trec_eval_folder, rag_lab):
    answer = rag_lab(
        "score", trec_eval_folder / "qrels.test", trec_eval_folder / "results.trunc", "--format", "json"
    ).json
    queries = answer["queries"]
    assert queries["judged"] == queries["answered"] + queries["missing"]
