"""Retrieval: BM25 against a slow reference, filters, ties, fusion, two stages."""

import math
from collections import Counter

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rag_lab.chunking import Chunk
from rag_lab.errors import InputError, OptionError
from rag_lab.fusion import convex, min_max, reciprocal_rank_fusion, z_score
from rag_lab.retrieval import (
    BM25Retriever,
    DenseRetriever,
    Hit,
    HybridRetriever,
    ThresholdRetriever,
    TwoStageRetriever,
    as_hits,
    search_many,
)
from rag_lab.text import tokenize, tokenize_query


def chunks_of(texts):
    return [Chunk(f"d{i:03}", 0, len(text), text) for i, text in enumerate(texts)]


def bm25(texts, **options):
    return BM25Retriever(chunks_of(texts), **options)


def found(retriever, query, k=10, **options):
    return [hit.doc_id for hit in retriever.search(query, k, **options)]


def slow_bm25(texts, query, k1=1.2, b=0.75):
    """Score every text by the formula, term by term."""
    documents = [Counter(tokenize(text)) for text in texts]
    lengths = [sum(document.values()) for document in documents]
    average = sum(lengths) / len(lengths)
    scores = []
    for document, length in zip(documents, lengths, strict=True):
        score = 0.0
        for term in tokenize_query(query):
            n = sum(term in other for other in documents)
            idf = math.log(1 + (len(documents) - n + 0.5) / (n + 0.5))
            frequency = document[term]
            if frequency:
                score += idf * frequency / (frequency + k1 * (1 - b + b * length / average))
        scores.append(score)
    return scores


WORDS = ["red", "blue", "cup", "pan", "tin", "漏水", "屋顶", "the"]
texts_lists = st.lists(st.lists(st.sampled_from(WORDS), max_size=6).map(" ".join), min_size=1, max_size=8)


@given(texts=texts_lists, query=st.lists(st.sampled_from(WORDS), min_size=1, max_size=4).map(" ".join))
@settings(max_examples=60)
def test_bm25_equals_the_slow_reference(texts, query):
    if not any(text for text in texts):
        assert bm25(texts).search(query, 10) == []
        return
    hits = bm25(texts).search(query, len(texts))
    expected = {f"d{i:03}": score for i, score in enumerate(slow_bm25(texts, query)) if score > 0}
    assert {hit.doc_id: hit.score for hit in hits} == pytest.approx(expected)


def test_idf_is_above_zero_for_a_word_in_half_of_the_documents():
    texts = ["red cup", "blue cup", "red pan", "tin pan"]
    hits = bm25(texts).search("red", 10)
    assert [hit.doc_id for hit in hits] == ["d002", "d000"]
    assert hits[0].score == hits[1].score == pytest.approx(math.log(2) / (1 + 1.2))
    assert found(bm25(["red"] * 5), "red") == ["d004", "d003", "d002", "d001", "d000"]


@pytest.mark.parametrize("texts", [[], [""], ["", "zinc"], ["???"]])
@pytest.mark.parametrize("query", ["", "  ", "???", "gold"])
def test_empty_things_give_empty_results(texts, query):
    assert bm25(texts).search(query, 3) == []


def test_one_document_beside_an_empty_one():
    assert found(bm25(["", "zinc"]), "zinc") == ["d001"]


@pytest.mark.parametrize(
    ("query", "expected"),
    [
        ("漏水", ["d000"]),
        ("门", ["d001"]),
        ("kubernetes", ["d002"]),
        ("C", ["d003"]),
        ("R", ["d004"]),
        ("café", ["d005"]),
    ],
)
def test_scripts_and_short_terms(query, expected):
    texts = ["屋顶漏水怎么办", "更换门锁的步骤", "部署Kubernetes集群", "vitamin C", "the R language", "cafe\u0301 noir"]
    assert found(bm25(texts), query) == expected


def test_equal_documents_score_equal():
    hits = bm25(["ant", "bee", "gold ring", "gold leaf"]).search("gold", 5)
    assert len(hits) == 2
    assert hits[0].score == hits[1].score > 0


def test_k_cuts_and_may_exceed_the_corpus():
    retriever = bm25(["red"] * 3)
    assert found(retriever, "red", 2) == ["d002", "d001"]
    assert len(found(retriever, "red", 1000)) == 3
    for k in (0, -1, 1.5):
        with pytest.raises(OptionError, match="expected"):
            retriever.search("red", k)


class LetterEncoder:
    """A real, if simple, embedding: letter counts, normalised."""

    def encode(self, texts):
        if not texts:
            return np.zeros((0, 26), dtype=np.float32)
        counts = np.array([[text.count(letter) + 0.01 for letter in "abcdefghijklmnopqrstuvwxyz"] for text in texts])
        return (counts / np.linalg.norm(counts, axis=1, keepdims=True)).astype(np.float32)


def dense(texts, **options):
    return DenseRetriever(chunks_of(texts), LetterEncoder(), **options)


def test_dense_search_is_exact():
    texts = ["aaa", "aab", "abb", "bbb", "", "  "]
    encoder = LetterEncoder()
    scores = encoder.encode(texts) @ encoder.encode(["aaab"])[0]
    expected = sorted(range(4), key=lambda i: -scores[i])
    hits = dense(texts).search("aaab", 10)
    assert [hit.doc_id for hit in hits] == [f"d{i:03}" for i in expected]
    assert [hit.score for hit in hits] == pytest.approx([float(scores[i]) for i in expected], abs=1e-6)


def test_dense_search_of_nothing():
    assert dense([]).search("a", 5) == []
    assert dense(["a"]).search("  ", 5) == []
    assert dense(["", " "]).search("a", 5) == []


def test_equal_texts_score_equal_in_any_place_of_a_dense_index():
    texts = ["gold"] + [f"silver{i}" for i in range(37)] + ["gold"]
    hits = dense(texts).search("gold", 2)
    assert [hit.doc_id for hit in hits] == ["d038", "d000"]
    assert hits[0].score == hits[1].score


BOLTS = ["bolt"] * 31
METADATA = {f"d{i:03}": {"tag": "B" if i == 13 else "A"} for i in range(31)}


@pytest.mark.parametrize("kind", ["bm25", "dense", "minmax", "zscore", "raw", "rrf", "two stages"])
def test_filters_apply_before_the_cut(kind):
    legs = dense(BOLTS, metadata=METADATA), bm25(BOLTS, metadata=METADATA)
    if kind == "two stages":
        retriever = TwoStageRetriever(legs[1], LengthReranker(), {chunk.id: chunk.text for chunk in legs[1].chunks}, 5)
    else:
        retriever = {"dense": legs[0], "bm25": legs[1]}.get(kind) or HybridRetriever(*legs, method=kind, depth=5)
    assert found(retriever, "bolt", 5, where={"tag": "B"}) == ["d013"]
    assert found(retriever, "bolt", 5, where={"tag": ["B", "C"]}) == ["d013"]
    assert found(retriever, "bolt", 5, where={"tag": "C"}) == []
    assert found(retriever, "bolt", 5, where={"other": "B"}) == []


class LengthReranker:
    """Score a pair by how close the lengths are."""

    def score(self, pairs):
        return [-float(abs(len(query) - len(text))) for query, text in pairs]


def test_two_stages_reorder_the_candidates_only():
    texts = ["red cup", "red", "red red red red", "blue"]
    first = bm25(texts)
    retriever = TwoStageRetriever(first, LengthReranker(), {chunk.id: chunk.text for chunk in first.chunks}, depth=3)
    assert set(found(retriever, "red", 3)) == set(found(first, "red", 3))
    assert found(retriever, "red", 3)[0] == "d001"
    assert len(found(retriever, "red", 100)) == 3


class FixedLogits:
    def __init__(self, logits):
        self.logits = logits

    def score(self, pairs):
        return self.logits[: len(pairs)]


def test_a_threshold_of_one_half_keeps_positive_logits():
    first = bm25([f"red {'x' * i}" for i in range(5)])
    texts = {chunk.id: chunk.text for chunk in first.chunks}
    retriever = TwoStageRetriever(first, FixedLogits([-8.3, -1.2, 4, 18, 20]), texts, depth=5, threshold=0.5)
    assert [hit.score for hit in retriever.search("red", 5)] == [20, 18, 4]


def test_threshold_retriever():
    assert len(ThresholdRetriever(dense(["aaa", "bbb"]), 0.9).search("aaa", 5)) == 1


@pytest.mark.parametrize(
    "options", [{"alpha": -0.1}, {"alpha": 1.1}, {"method": "max"}, {"depth": 0}, {"alpha": math.nan}]
)
def test_bad_hybrids(options):
    with pytest.raises(OptionError, match="expected"):
        HybridRetriever(None, None, **options)


def test_hybrid_at_the_ends_follows_one_leg():
    texts = ["aab red", "red red", "abc", "bbb red"]
    legs = dense(texts), bm25(texts)
    assert found(HybridRetriever(*legs, alpha=1.0), "red", 2) == found(legs[0], "red", 2)
    assert found(HybridRetriever(*legs, alpha=0.0), "red", 2) == found(legs[1], "red", 2)


def test_constant_scores_are_halves():
    fused = convex([{"a": 0.7}, {"b": 3.0, "c": 3.0}], (0.5, 0.5))
    assert fused == {"a": 0.5, "b": 0.5, "c": 0.5}


def test_reciprocal_rank_fusion_worked_examples():
    fused = reciprocal_rank_fusion([["d1", "d2", "d3", "hit"], ["e1", "e2", "e3", "hit"]])
    assert max(fused, key=fused.get) == "hit"
    assert fused["hit"] == pytest.approx(2 / 64)
    fused = reciprocal_rank_fusion([["p", "p", "p"], ["r", "s"], ["r"]])
    assert (fused["r"], fused["p"]) == (pytest.approx(2 / 61), pytest.approx(1 / 61))


numbers = st.floats(allow_nan=False, allow_infinity=False)
score_lists = st.dictionaries(st.sampled_from("abcdef"), numbers, max_size=6)


@given(one=score_lists, other=score_lists, alpha=st.floats(0, 1), normalizer=st.sampled_from(["minmax", "zscore"]))
def test_fusion_is_finite_and_forgets_order(one, other, alpha, normalizer):
    fused = convex([one, other], (alpha, 1 - alpha), normalizer)
    assert set(fused) == set(one) | set(other)
    assert all(math.isfinite(score) for score in fused.values())
    shuffled = [dict(sorted(scores.items(), reverse=True)) for scores in (one, other)]
    assert convex(shuffled, (alpha, 1 - alpha), normalizer) == pytest.approx(fused, abs=1e-9)
    assert convex([other, one], (1 - alpha, alpha), normalizer) == pytest.approx(fused, abs=1e-9)


@given(score_lists)
def test_min_max_stays_in_range_and_keeps_order(scores):
    scaled = min_max(scores)
    assert all(0 <= value <= 1 for value in scaled.values())
    ordered = sorted(scores, key=scores.get)
    assert all(scaled[a] <= scaled[b] for a, b in zip(ordered, ordered[1:], strict=False))


def test_z_score_by_hand():
    assert z_score({"a": 1.0, "b": 3.0}) == pytest.approx({"a": -1.0, "b": 1.0})
    assert z_score({"a": 5.0, "b": 5.0}) == {"a": 0.0, "b": 0.0}


def test_plain_functions_are_retrievers():
    queries = {"q": "text"}
    for answer in (["a", "b"], [("a", 2.0), ("b", 1.0)], [Hit("a", 2.0), Hit("b", 1.0)]):
        hits = search_many(lambda query, k, answer=answer: answer, queries, 5)["q"]
        assert [hit.id for hit in hits] == ["a", "b"]
        assert len(search_many(lambda query, k, answer=answer: answer, queries, 1)["q"]) == 1


def test_a_chunk_id_tells_its_place():
    assert as_hits(["guide:10:20", "a:b:10:20", "plain", "x:y"], "q") == [
        Hit("guide:10:20", 0.0, "guide", 10, 20),
        Hit("a:b:10:20", -1.0, "a:b", 10, 20),
        Hit("plain", -2.0),
        Hit("x:y", -3.0),
    ]


@pytest.mark.parametrize(
    "answer", [["a", "a"], [("a", math.nan)], [7], ["a", ("b", 1.0)], [Hit("a", 1.0), Hit("a", 0.0)]]
)
def test_bad_results_of_a_retriever(answer):
    with pytest.raises(InputError, match="expected"):
        search_many(lambda query, k: answer, {"q": "text"}, 5)


def test_chunks_must_differ_and_texts_must_match():
    with pytest.raises(InputError, match="share an id"):
        BM25Retriever([Chunk("d", 0, 1, "x")] * 2)
    with pytest.raises(InputError, match="2 texts for 1 chunks"):
        BM25Retriever([Chunk("d", 0, 1, "x")], texts=["a", "b"])
