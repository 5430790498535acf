"""Chunkers: exact offsets, nothing lost, no grapheme cluster cut, clear errors."""

import pytest
import regex
from hypothesis import given
from hypothesis import strategies as st

from rag_lab.chunking import ADAPTIVE_SIZES, check_spec, chunk_documents, chunk_spans, document_kind
from rag_lab.collection import Document
from rag_lab.errors import OptionError

SPECS = [
    "none",
    "fixed:7",
    "fixed:7:3",
    "fixed:10:9",
    "fixed:1",
    "sentence:9",
    "recursive:9",
    "adaptive",
    "fixed:5+recursive:20",
]


def pieces(text, spec):
    return [text[start:end] for start, end in chunk_spans(text, spec)]


def assert_sound(text, spec):
    """Check what must hold for every text and chunker."""
    spans = chunk_spans(text, spec)
    allowed = {match.start() for match in regex.finditer(r"\X", text)} | {len(text)}
    covered = {i for start, end in spans for i in range(start, end)}
    assert all(i in covered for i, character in enumerate(text) if not character.isspace())
    assert all({start, end} <= allowed for start, end in spans)
    assert spans == sorted(set(spans))
    assert all(start < end for start, end in spans) or spec == "none"
    if "+" not in spec:
        assert all(a[0] < b[0] and a[1] < b[1] for a, b in zip(spans, spans[1:], strict=False))


@given(text=st.text(max_size=80), spec=st.sampled_from(SPECS))
def test_any_text_is_cut_soundly(text, spec):
    assert_sound(text, spec)


CLUSTERS = ["a", " ", "\n", ".", "e\u0301", "🚲", "👩‍👩‍👧‍👦", "🇩🇪", "한", "\r\n", "。", "京", "\u0300", "क्षि", "\u200d"]


@given(text=st.lists(st.sampled_from(CLUSTERS), max_size=40).map("".join), spec=st.sampled_from(SPECS))
def test_texts_full_of_clusters_are_cut_soundly(text, spec):
    assert_sound(text, spec)


@pytest.mark.parametrize("spec", SPECS)
@pytest.mark.parametrize(
    "text",
    [
        "x" * 500,
        "Wait...!! (ok?)",
        "\n\n\n",
        "",
        "naïve 🚲 – 東京タワー. " * 5,
        "tick tock tick tock tick",
        "ab\n" * 20,
    ],
)
def test_difficult_texts(text, spec):
    assert_sound(text, spec)


def test_repeated_text_gets_different_offsets():
    text = "tick tock tick tock tick"
    assert chunk_spans(text, "recursive:4") == [(0, 4), (5, 9), (10, 14), (15, 19), (20, 24)]
    assert chunk_spans(text, "fixed:10") == [(0, 10), (10, 20), (20, 24)]


def test_fixed_windows_start_at_multiples_of_the_step():
    assert chunk_spans("x" * 25, "fixed:10") == [(0, 10), (10, 20), (20, 25)]
    assert chunk_spans("x" * 25, "fixed:10:4") == [(0, 10), (6, 16), (12, 22), (18, 25)]
    assert chunk_spans("x" * 20, "fixed:10:5") == [(0, 10), (5, 15), (10, 20)]
    assert chunk_spans("x" * 10, "fixed:10:9") == [(0, 10)]


def test_a_window_moves_back_to_keep_a_cluster_whole():
    text = "abc" + "e\u0301" + "fg"
    assert chunk_spans(text, "fixed:4") == [(0, 3), (3, 7)]


def test_a_cluster_longer_than_the_window_stays_whole():
    family = "👩‍👩‍👧‍👦"
    assert pieces(family * 2, "fixed:3") == [family, family]


def test_sentences_are_packed_up_to_the_size():
    text = "One two. Three four. Five? 六七。八九。"
    assert pieces(text, "sentence:9") == ["One two.", "Three", "four.", "Five? 六七。", "八九。"]
    assert pieces(text, "sentence:20") == ["One two. Three four.", "Five? 六七。八九。"]
    assert pieces("It costs 3.5 cr. Pay here.", "sentence:16") == ["It costs 3.5 cr.", "Pay here."]


def test_recursive_prefers_paragraphs_then_sentences():
    text = "Alpha beta. Gamma delta.\n\nEpsilon zeta."
    assert pieces(text, "recursive:30") == ["Alpha beta. Gamma delta.", "Epsilon zeta."]
    assert pieces(text, "recursive:13") == ["Alpha beta.", "Gamma delta.", "Epsilon zeta."]
    assert pieces(text, "recursive:100") == [text]


def test_white_space_alone_is_no_chunk():
    assert chunk_spans("\n\n\n", "fixed:2") == []
    assert chunk_spans("a" + " " * 9 + "b", "fixed:3") == [(0, 3), (9, 11)]
    assert chunk_spans("a b", "none") == [(0, 3)]


def test_joined_chunkers_hold_every_size_once():
    text = "x" * 20
    assert chunk_spans(text, "fixed:10+fixed:20") == [(0, 10), (0, 20), (10, 20)]
    assert chunk_spans(text, "fixed:20+none") == [(0, 20)]


TABLE = "| Code | Meaning |\n|---|---|\n| E-23 | Paper jam at the cutter |\n| E-52 | Coin hopper full |\n"
STORY = "She looked at the sea for a long while. The boat was late again, and nobody on the pier seemed to mind. "


def test_adaptive_takes_small_chunks_for_technical_and_large_ones_for_narrative_text():
    assert (document_kind(TABLE), document_kind(STORY)) == ("technical", "narrative")
    for text, kind in ((TABLE * 20, "technical"), (STORY * 20, "narrative")):
        assert chunk_spans(text, "adaptive") == chunk_spans(text, f"recursive:{ADAPTIVE_SIZES[kind]}")


def test_chunks_know_their_document():
    documents = [Document("a", "one two"), Document("b", "three")]
    chunks = chunk_documents(documents, "fixed:4")
    assert [chunk.id for chunk in chunks] == ["a:0:4", "a:4:7", "b:0:4", "b:4:5"]
    assert all(chunk.text == {"a": "one two", "b": "three"}[chunk.doc_id][chunk.start : chunk.end] for chunk in chunks)


@pytest.mark.parametrize(
    "spec",
    ["fixed:10:10", "fixed:10:12", "fixed:0:0", "fixed:0", "fixed:5:-1", "fixed", "fixed:", "fixed:x", "fixed:1:2:3", "fixed:5.0",
     "fixed:５", "sentence", "sentence:0", "sentence:9:2", "recursive:-1", "none:3", "adaptive:200", "word:5", "", "fixed:5+", "+", None, 512],
)  # fmt: skip
def test_impossible_chunkers_are_clear_errors(spec):
    with pytest.raises(OptionError, match="expected"):
        check_spec(spec)


@pytest.mark.parametrize("spec", ["fixed:10:9", "fixed:7:3"])
def test_overlap_finishes_and_moves_on(spec):
    text = "ab\n" * 20
    spans = chunk_spans(text, spec)
    assert all(a[0] < b[0] and a[1] < b[1] for a, b in zip(spans, spans[1:], strict=False))
    assert spans[-1][1] == len(text)
