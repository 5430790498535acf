"""Labels from spans, by hand-worked examples and an independent slow count."""

import math
from types import SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rag_lab.chunking import Chunk
from rag_lab.collection import Span
from rag_lab.errors import OptionError
from rag_lab.labels import (
    carries,
    char_iou,
    char_precision,
    char_recall,
    chunk_qrels,
    evidence_ndcg_at_k,
    evidence_recall_at_k,
    first_found,
    within_budget,
)


def span(start, end, grade=3, doc_id="d"):
    return Span("q", doc_id, start, end, grade)


def chunk(start, end, doc_id="d"):
    return Chunk(doc_id, start, end, "x" * (end - start))


@pytest.mark.parametrize(
    ("chunk_place", "span_place", "carried"),
    [
        ((0, 100), (80, 120), True),  # 20 of 40: exactly half of the span
        ((0, 100), (81, 121), False),  # 19 of 40
        ((0, 20), (0, 100), True),  # a small chunk inside a long span
        ((90, 110), (0, 100), True),  # 10 of 20: half of the chunk
        ((91, 111), (0, 100), False),
        ((0, 10), (10, 20), False),  # they only touch
    ],
)
def test_a_chunk_carries_a_span_from_half_of_the_shorter(chunk_place, span_place, carried):
    assert carries(chunk(*chunk_place), span(*span_place)) is carried


def test_another_document_carries_nothing():
    assert not carries(chunk(0, 100, "other"), span(0, 10))


def test_chunk_qrels_take_the_largest_grade_and_keep_judged_zeros():
    chunks = [chunk(0, 100), chunk(100, 200), chunk(0, 50, "read"), chunk(0, 50, "unread")]
    spans = {"q": [span(0, 10, 1), span(20, 30, 3), span(150, 160, 0)]}
    assert chunk_qrels(spans, chunks, read={"q": ["read"]}) == {"q": {"read:0:50": 0, "d:0:100": 3, "d:100:200": 0}}


def test_a_span_split_by_a_border_is_found_when_both_halves_are_read():
    spans = [span(90, 110)]
    halves = [chunk(0, 100), chunk(100, 200)]
    assert first_found(spans, halves, tau=0.5) == [1]
    assert first_found(spans, halves, tau=0.6) == [2]
    assert first_found(spans, halves[:1], tau=0.6) == [None]


def test_evidence_recall_has_the_same_denominator_for_every_chunking():
    spans = [span(0, 10), span(500, 510), span(900, 910, grade=0)]
    assert evidence_recall_at_k(spans, [chunk(0, 1000)], 1) == 1.0
    assert evidence_recall_at_k(spans, [chunk(0, 100), chunk(100, 200)], 2) == 0.5
    assert evidence_recall_at_k(spans, [chunk(0, 100)], 1, rel_level=4) == 0.0
    assert evidence_recall_at_k([], [chunk(0, 100)], 1) == 0.0


def test_evidence_ndcg_earns_a_span_once():
    spans = [span(0, 10, 3), span(50, 60, 2)]
    # Both spans lie in the first chunk: it earns the higher grade; the second earns nothing again.
    ideal = 3 + 2 / math.log2(3)
    assert evidence_ndcg_at_k(spans, [chunk(0, 100), chunk(0, 80)], 2) == pytest.approx(3 / ideal)
    assert evidence_ndcg_at_k(spans, [chunk(40, 70), chunk(0, 30)], 2) == pytest.approx((2 + 3 / math.log2(3)) / ideal)
    assert evidence_ndcg_at_k(spans, [chunk(0, 30)], 1) == 1.0


def test_reading_view_counts_unions():
    spans = [span(0, 10), span(5, 20)]  # 20 characters of evidence
    passages = [("d", 0, 15), ("d", 10, 40), ("other", 0, 10)]  # 50 characters read
    assert char_recall(spans, passages) == 1.0
    assert char_precision(spans, passages) == pytest.approx(20 / 50)
    assert char_iou(spans, passages) == pytest.approx(20 / 50)
    assert char_recall(spans, [("d", 0, 10)]) == 0.5
    assert char_recall([], passages) == char_precision(spans, []) == char_iou([], []) == 0.0


def test_budget_cuts_the_last_chunk():
    ranking = [chunk(0, 100), chunk(50, 150), chunk(300, 400)]
    assert within_budget(ranking, 120) == [("d", 0, 100), ("d", 50, 70)]
    assert within_budget(ranking, 100) == [("d", 0, 100)]
    assert within_budget(ranking, 1000) == [("d", 0, 100), ("d", 50, 150), ("d", 300, 400)]


@pytest.mark.parametrize("tau", [0, -0.5, 1.5, math.nan])
def test_bad_tau(tau):
    with pytest.raises(OptionError, match="tau"):
        chunk_qrels({}, [], tau)


places = st.tuples(st.sampled_from("de"), st.integers(0, 30), st.integers(1, 15))
spans_lists = st.lists(st.tuples(places, st.integers(0, 3)), min_size=1, max_size=5)


@given(spans=spans_lists, passages=st.lists(places, max_size=6))
def test_reading_view_equals_counting_characters_one_by_one(spans, passages):
    spans = [span(start, start + size, grade, doc_id) for (doc_id, start, size), grade in spans]
    passages = [(doc_id, start, start + size) for doc_id, start, size in passages]
    evidence = {(s.doc_id, i) for s in spans if s.grade >= 1 for i in range(s.start, s.end)}
    read = {(doc_id, i) for doc_id, start, end in passages for i in range(start, end)}
    both, either = len(evidence & read), len(evidence | read)
    assert char_recall(spans, passages) == (both / len(evidence) if evidence else 0.0)
    assert char_precision(spans, passages) == (both / len(read) if read else 0.0)
    assert char_iou(spans, passages) == (both / either if either else 0.0)


@given(spans=spans_lists, passages=st.lists(places, max_size=6, unique=True), tau=st.sampled_from([0.25, 0.5, 1.0]))
def test_first_found_equals_a_slow_count(spans, passages, tau):
    spans = [span(start, start + size, grade, doc_id) for (doc_id, start, size), grade in spans]
    ranking = [SimpleNamespace(doc_id=doc_id, start=start, end=start + size) for doc_id, start, size in passages]
    for one, found in zip(spans, first_found(spans, ranking, tau), strict=True):
        covered, expected = set(), None
        for rank, piece in enumerate(ranking, start=1):
            if piece.doc_id == one.doc_id:
                covered |= set(range(piece.start, piece.end)) & set(range(one.start, one.end))
            if expected is None and covered and len(covered) >= tau * (one.end - one.start):
                expected = rank
        assert found == expected


@given(text_length=st.integers(50, 400), start=st.integers(0, 40), size=st.integers(1, 40), step=st.integers(5, 60))
def test_every_span_is_carried_by_some_chunk_of_every_partition(text_length, start, size, step):
    """Cutting at multiples of `step` never loses a span: one piece holds half of it, or is full of it."""
    end = min(start + size, text_length)
    chunks = [chunk(left, min(left + step, text_length)) for left in range(0, text_length, step)]
    graded = chunk_qrels({"q": [span(start, end)]}, chunks)["q"]
    assert max(graded.values()) == 3
    assert evidence_recall_at_k([span(start, end)], chunks) == 1.0
