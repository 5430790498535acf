"""The evaluator, the ablation and the command line, on small collections worked by hand."""

import json
import math
import os

import numpy as np
import pandas as pd
import pytest

from rag_lab.ablation import (
    ARTICLE_GRID,
    configuration_name,
    expand_grid,
    format_summary,
    read_grid,
    run_ablation,
    summarize,
    write_report,
)
from rag_lab.chunking import chunk_documents
from rag_lab.collection import load_collection
from rag_lab.errors import InputError, OptionError
from rag_lab.evaluation import RAGEvaluator
from rag_lab.metrics import evaluate
from rag_lab.retrieval import BM25Retriever
from rag_lab.trec import read_qrels, read_run

DOCUMENTS = {"d1": "gold ring. " * 4 + "zinc nail", "d2": "red cup. gold leaf.", "d3": "plain text"}
QUERIES = {
    "q1": {"_id": "q1", "text": "zinc", "metadata": {"split": "dev", "type": "simple"}},
    "q2": {"_id": "q2", "text": "gold leaf", "metadata": {"split": "test"}},
    "q3": {"_id": "q3", "text": "unknown", "metadata": {"split": "test", "answerable": False}},
    "q4": {"_id": "q4", "text": "nobody labelled this", "metadata": {"split": "test"}},
}
EVIDENCE = [("q1", "d1", 44, 53, 3), ("q2", "d2", 9, 19, 3), ("q2", "d1", 0, 10, 1), ("q2", "d3", 0, 5, 0)]
QRELS = {"dev": [("q1", "d1", 1)], "test": [("q2", "d2", 2), ("q2", "d1", 1), ("q2", "d3", 0)]}


@pytest.fixture
def path(make_collection):
    return make_collection(DOCUMENTS, QUERIES, EVIDENCE, QRELS)


def evaluator(path, chunker="fixed:22", **options):
    collection = load_collection(path)
    return RAGEvaluator(collection, chunk_documents(collection.documents.values(), chunker), **options)


def test_the_three_views_by_hand(path):
    # Chunks: d1 0–22, 22–44, 44–53; d2 0–19; d3 0–10.
    names = ["recall@1", "recall@3", "precision@2", "ndcg@2", "chunk_recall@1", "evidence_ndcg@2", "char_recall@1",
             "char_precision@1", "iou@1", "recall@25chars", "char_precision@25chars", "judged@3"]  # fmt: skip
    scorer = evaluator(path, metrics=names, split="test")
    ranking = ["d2:0:19", "d1:22:44", "d1:0:22"]
    values = scorer.evaluate(lambda query, k: ranking if query == "gold leaf" else []).loc["q2"]
    gains = 3 + 1 / math.log2(3)
    assert values["recall@1"] == 0.5
    assert values["recall@3"] == 1.0
    assert values["precision@2"] == 0.5  # the middle chunk carries nothing
    assert values["ndcg@2"] == pytest.approx(3 / gains)
    assert values["chunk_recall@1"] == 0.5
    assert values["evidence_ndcg@2"] == pytest.approx(3 / gains)
    assert values["char_recall@1"] == 0.5
    assert values["char_precision@1"] == pytest.approx(10 / 19)
    assert values["iou@1"] == pytest.approx(10 / 29)
    assert values["recall@25chars"] == 0.5
    assert values["char_precision@25chars"] == pytest.approx(10 / 25)
    assert values["judged@3"] == 1.0  # all of these documents were read for the query


def test_unanswerable_and_unlabelled_queries_are_set_apart(path):
    scorer = evaluator(path, split="test")
    answer = scorer.score(scorer.search(BM25Retriever(scorer.chunks)))
    assert list(answer.per_query) == ["q2"]
    assert answer.queries == {"judged": 1, "answered": 1, "missing": 0, "unanswerable": 1, "ignored": 1}
    assert answer.abstention == 1.0
    everything = scorer.score(scorer.search(lambda query, k: ["d1:0:22"]))
    assert everything.abstention == 0.0


def test_with_qrels_chunks_collapse_to_documents_before_the_cut(path):
    scorer = evaluator(path, labels="qrels", metrics=["recall@2", "ndcg@2"], split="test")
    ranking = ["d1:0:22", "d1:22:44", "d2:0:19"]
    values = scorer.evaluate(lambda query, k: ranking).loc["q2"]
    assert values["recall@2"] == 1.0
    assert values["ndcg@2"] == pytest.approx((1 + 2 / math.log2(3)) / (2 + 1 / math.log2(3)))


def test_splits(path):
    assert list(evaluator(path, split="dev").queries) == ["q1"]
    for labels in ("evidence", "qrels"):
        with pytest.raises(InputError, match="no split 'train'; it has dev, test"):
            evaluator(path, split="train", labels=labels)


@pytest.mark.parametrize(
    "name", ["recall@0", "recal@5", "ndcg@5chars", "recall@chars", "recall@5 chars", "evidence_ndcg@9chars"]
)
def test_bad_metrics(path, name):
    with pytest.raises(OptionError):
        evaluator(path, metrics=[name])


def test_k_below_a_cutoff_is_an_error(path):
    with pytest.raises(OptionError, match="cutoff 10"):
        evaluator(path, k=9)
    assert evaluator(path, k=30).k == 30


# Ablation.


def test_the_article_grid_has_18_configurations():
    assert len({configuration_name(c) for c in expand_grid(ARTICLE_GRID)}) == 18


def test_configurations_that_differ_in_what_they_do_not_use_are_one():
    assert len(expand_grid({"retriever": ["dense", "bm25"], "alpha": [0.1, 0.9], "threshold": [0.5]})) == 2


@pytest.mark.parametrize(
    "grid",
    [{}, [], {"chunkers": ["none"]}, {"chunker": []}, {"chunker": ["fixed:0"]}, {"retriever": ["x"]}, {"alpha": ["x"]},
     {"rerank": [-1]}, {"rerank": [True]}, {"threshold": [2]}, {"fusion": ["x"], "retriever": ["hybrid"]}, "text", None],
)  # fmt: skip
def test_bad_grids(grid):
    if grid == {}:
        assert len(expand_grid(grid)) == 1  # the defaults alone
        return
    with pytest.raises(InputError, match="expected"):
        expand_grid(grid)


BOMB = "a: &a [x, x]\nb: &b [*a, *a]\nc: [*b, *b]\n"


@pytest.mark.parametrize(
    "text",
    [
        BOMB,
        "a: [",
        "chunker: [none]\nchunker: [adaptive]",
        "!!python/object/apply:os.system [ls]",
        "[" * 5000,
        "a: b: c",
        "? [a]\n: b",
    ],
)
def test_bad_yaml_is_a_clear_error(tmp_path, rag_lab, path, text):
    (tmp_path / "grid.yaml").write_text(text)
    with pytest.raises(InputError, match="grid.yaml"):
        read_grid(tmp_path / "grid.yaml")


GRID = {"chunker": ["fixed:22", "sentence:22"], "retriever": ["bm25"]}


def test_same_bytes_for_every_number_of_jobs_and_after_a_break(path, tmp_path):
    collection, configurations = load_collection(path), expand_grid(GRID)
    outputs = []
    for name, jobs in (("one", 1), ("two", 2)):
        results = run_ablation(collection, configurations, out=tmp_path / name, jobs=jobs)
        write_report(results, summarize(results), collection, tmp_path / name)
        outputs.append({file.name: file.read_bytes() for file in (tmp_path / name).iterdir() if file.is_file()})
    parts = sorted((tmp_path / "one" / "parts").iterdir())
    assert len(parts) == 2
    parts[0].unlink()
    parts[1].write_bytes(parts[1].read_bytes().replace(b"1.0", b"0.5"))  # damaged: computed again
    results = run_ablation(collection, configurations, out=tmp_path / "one")
    write_report(results, summarize(results), collection, tmp_path / "one")
    outputs.append({file.name: file.read_bytes() for file in (tmp_path / "one").iterdir() if file.is_file()})
    assert outputs[0] == outputs[1] == outputs[2]
    assert set(outputs[0]) == {"results.csv", "summary.csv", "summary.json", "summary.md", "summary.tex", "report.html"}


def test_finished_work_is_not_repeated(path, tmp_path, monkeypatch):
    collection, configurations = load_collection(path), expand_grid(GRID)
    first = run_ablation(collection, configurations, out=tmp_path)
    monkeypatch.setattr("rag_lab.ablation.Workbench", None)
    pd.testing.assert_frame_equal(run_ablation(collection, configurations, out=tmp_path), first)


def test_reports_show_texts_as_text(make_collection, tmp_path):
    evil = "<script>alert(1)</script>"
    path = make_collection({"d": evil}, {"q": f"alert {evil}"}, [("q", "d", 0, len(evil), 3)], folder="evil")
    collection = load_collection(path)
    results = run_ablation(collection, expand_grid({"retriever": "bm25"}))
    write_report(results, summarize(results), collection, tmp_path)
    page = (tmp_path / "report.html").read_text(encoding="utf-8")
    assert "<script" not in page
    assert "&lt;script&gt;" in page


def table(**columns):
    rows = [
        {"configuration": name, "query_id": f"q{i}", "ndcg@10": value}
        for name, values in columns.items()
        for i, value in enumerate(values)
    ]
    return pd.DataFrame(rows)


def test_summary_compares_with_the_baseline():
    rng = np.random.default_rng(0)
    base = rng.uniform(0, 0.5, 60)
    summary = summarize(table(a=base, b=base + 0.3, c=base[::-1])).set_index("configuration")
    assert summary.loc["b", "difference"] == pytest.approx(0.3)
    assert (summary.loc["b", "wins"], summary.loc["b", "losses"]) == (60, 0)
    assert summary.loc["b", "p_holm"] == pytest.approx(2 * summary.loc["b", "p"])
    assert summary.loc["c", "p"] > 0.5
    assert math.isnan(summary.loc["a", "p"])
    for kind in ("markdown", "latex", "csv", "json", "html"):
        assert "b" in format_summary(summary.reset_index(), kind)


def test_summary_needs_the_same_queries():
    with pytest.raises(InputError, match="other queries"):
        summarize(table(a=[0.1, 0.2], b=[0.1]))
    with pytest.raises(InputError, match="baseline"):
        summarize(table(a=[0.1]), baseline="z")


# Command line.


def test_evaluate_prints_one_json_object(path, rag_lab):
    answer = rag_lab(
        "evaluate", path, "--retriever", "bm25", "--chunker", "fixed:22", "--format", "json", "--per-query"
    ).json
    assert set(answer["metrics"]) == {"recall@5", "precision@3", "ndcg@10"}
    assert answer["queries"] == {"judged": 2, "answered": 2, "missing": 0, "unanswerable": 1, "ignored": 1}
    assert set(answer["per_query"]) == {"q1", "q2"}
    assert answer["labels"] == "evidence"
    whole = rag_lab("evaluate", path, "--retriever", "bm25", "--chunker", "none", "--format", "json").json
    assert whole["labels"] == "qrels"


def test_exported_files_match_each_other_and_the_scores(path, rag_lab, tmp_path):
    files = ["--run-file", tmp_path / "run", "--qrels-file", tmp_path / "qrels"]
    names = ["precision@3", "ndcg@10"]
    answer = rag_lab(
        "evaluate", path, "--retriever", "bm25", "--chunker", "fixed:22:5+sentence:30", "--metrics", *names, *files, "--format", "json"
    ).json  # fmt: skip
    again = evaluate(read_qrels(tmp_path / "qrels"), read_run(tmp_path / "run"), names)
    assert again.metrics == answer["metrics"]


def test_compare_runs_on_qrels_and_on_a_collection(path, rag_lab, tmp_path):
    for name, spec in (("a", "fixed:22"), ("b", "sentence:30")):
        files = ["--run-file", tmp_path / name, "--qrels-file", tmp_path / f"qrels_{name}"]
        rag_lab("evaluate", path, "--retriever", "bm25", "--chunker", spec, *files)
    rows = json.loads(rag_lab("compare", path, tmp_path / "a", tmp_path / "b", "--format", "json").out)
    assert {row["metric"] for row in rows} == {"recall@5", "evidence_ndcg@10", "iou@5"}
    assert len(rows) == 6
    rag_lab("compare", path, tmp_path / "a", tmp_path / "b", "--metrics", "ndcg@10", code=2)
    assert "ndcg@10" in rag_lab("compare", tmp_path / "qrels_a", tmp_path / "a", tmp_path / "b").out


def test_ablate_writes_a_report(path, rag_lab, tmp_path):
    (tmp_path / "grid.yaml").write_text(json.dumps(GRID))
    answer = rag_lab("ablate", path, "--grid", tmp_path / "grid.yaml", "--out", tmp_path / "out", "--format", "json")
    assert len(json.loads(answer.out)) == 6
    assert (tmp_path / "out" / "report.html").exists()


@pytest.mark.parametrize(
    "options",
    [["--chunker", "fixed:0"], ["--k", "0"], ["--k", "5"], ["--metrics", "ndcg@0"], ["--alpha", "2"], ["--retriever", "x"],
     ["--rerank", "-1"], ["--threshold", "0.5"], ["--rel-level", "x"], ["--fusion", "x", "--retriever", "hybrid"], ["--labels", "x"]],
)  # fmt: skip
def test_invalid_option_values_exit_with_2(path, rag_lab, options):
    assert "rag-lab" in rag_lab("evaluate", path, "--retriever", "bm25", *options, code=2).err


def test_bad_input_exits_with_1(path, rag_lab, tmp_path):
    assert "no such folder" in rag_lab("evaluate", tmp_path / "x", "--retriever", "bm25", code=1).err
    assert "nowhere" in rag_lab("score", tmp_path / "nowhere", tmp_path / "nowhere", code=1).err
    assert "split" in rag_lab("evaluate", path, "--retriever", "bm25", "--split", "x", code=1).err
    target = tmp_path / "no" / "run"
    assert "run" in rag_lab("evaluate", path, "--retriever", "bm25", "--run-file", target, code=1).err


def test_dense_hybrid_and_rerank_run(path, rag_lab, tmp_path):
    for options in (["dense"], ["hybrid", "--alpha", "0.3"], ["hybrid", "--fusion", "rrf", "--rerank", "2"]):
        answer = rag_lab(
            "evaluate", path, "--retriever", *options, "--format", "json", env={"RAG_LAB_CACHE": str(tmp_path / "cache")}
        )  # fmt: skip
        assert 0 <= answer.json["metrics"]["ndcg@10"] <= 1
    assert "at most 2 results" in answer.err


def test_public_collections(collections_folder, rag_lab):
    bm25 = ["--retriever", "bm25", "--format", "json"]
    chinese = rag_lab("evaluate", collections_folder / "xquad_zh", "--chunker", "fixed:512", *bm25).json
    assert chinese["metrics"]["recall@5"] >= 0.95
    scifact = rag_lab(
        "evaluate", collections_folder / "scifact", "--chunker", "none", "--metrics", "ndcg@10", *bm25
    ).json
    assert scifact["metrics"]["ndcg@10"] == pytest.approx(0.66, abs=0.01)
    assert "HF_HUB_OFFLINE" in os.environ
