"""The analyser: scripts, normal forms, and terms that must be found."""

import unicodedata

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rag_lab.text import normalize, tokenize, tokenize_query


@pytest.mark.parametrize(
    ("text", "terms"),
    [
        ("The R7 night boat", ["the", "r7", "night", "boat"]),
        ("TRN-318, payment.webhook.timeout_s", ["trn", "318", "payment", "webhook", "timeout", "s"]),
        ("屋顶漏水", ["屋", "顶", "漏", "水", "屋顶", "顶漏", "漏水"]),
        ("部署Kubernetes集群", ["部", "署", "部署", "kubernetes", "集", "群", "集群"]),
        ("ＡＢＣ１２", ["abc12"]),
        ("Straße", ["strasse"]),
        ("हिन्दी", ["हिन्दी"]),
        ("naïve café", ["naïve", "café"]),
        ("???", []),
        ("", []),
        (" \n\t", []),
    ],
)
def test_terms_of_a_document(text, terms):
    assert tokenize(text) == terms


@pytest.mark.parametrize(
    ("text", "terms"),
    [
        ("门", ["门"]),
        ("门锁", ["门锁"]),
        ("更换门锁", ["更换", "换门", "门锁"]),
        ("R", ["r"]),
        ("vitamin C", ["vitamin", "c"]),
    ],
)
def test_terms_of_a_query(text, terms):
    assert tokenize_query(text) == terms


@given(st.text())
def test_normal_forms_and_case_do_not_matter(text):
    for form in ("NFC", "NFD", "NFKC"):
        assert tokenize(unicodedata.normalize(form, text)) == tokenize(text)
    assert normalize(normalize(text)) == normalize(text)


@given(st.text())
def test_query_terms_are_document_terms(text):
    assert set(tokenize_query(text)) <= set(tokenize(text))


@given(st.text())
def test_no_letter_or_digit_is_lost(text):
    kept = "".join(tokenize(text))
    assert {c for c in normalize(text) if c.isalpha() or c.isdigit()} <= set(kept)
