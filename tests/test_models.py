"""Packaged models and the cache: real weights, damage, concurrency."""

import os
import sqlite3
import subprocess
import sys

import numpy as np
import pytest

from rag_lab import models
from rag_lab.errors import InputError
from rag_lab.models import Cache, Encoder, Reranker, make_key, read_pack, sigmoid, write_pack

TEXTS = ["The night boat has cabins.", "Paper jam at the cutter.", "夜船有客舱。", ""]


@pytest.fixture
def cache(tmp_path):
    return Cache(tmp_path / "models.sqlite", pack={})


def test_vectors_are_unit_vectors_and_similar_texts_are_close(cache):
    encoder = Encoder(cache=cache)
    vectors = encoder.encode([*TEXTS, "You can sleep on board overnight."])
    assert vectors.shape == (5, 384)
    assert np.linalg.norm(vectors, axis=1) == pytest.approx(1.0, abs=1e-3)
    assert vectors[0] @ vectors[4] > vectors[1] @ vectors[4]


def test_a_vector_is_the_same_cached_or_fresh_alone_or_among_others(cache, tmp_path):
    together = Encoder(cache=cache).encode(TEXTS)
    other = Encoder(cache=Cache(tmp_path / "other.sqlite", pack={}))
    alone = np.vstack([other.encode([text]) for text in TEXTS])
    assert (together == alone).all()
    assert (Encoder(cache=cache).encode(TEXTS[::-1])[::-1] == together).all()


def test_reranker_prefers_the_answer_and_scores_do_not_depend_on_the_batch(cache, tmp_path):
    pairs = [
        ("How long is the crossing?", "The crossing takes 55 minutes."),
        ("How long is the crossing?", "Dogs are welcome."),
    ]
    together = Reranker(cache=cache).score(pairs)
    other = Reranker(cache=Cache(tmp_path / "other.sqlite", pack={}))
    assert together == [other.score([pair])[0] for pair in pairs]
    assert together[0] > together[1]


def test_truncated_texts_are_counted(cache):
    long = "word " * 400
    assert Encoder(cache=cache).count_truncated([long, "short"]) == 1
    assert Reranker(cache=cache).count_truncated([("q", long * 2), ("q", "short")]) == 1


def test_changed_weights_are_refused(tmp_path, monkeypatch):
    model = models.MODELS[models.RERANKER]
    monkeypatch.setitem(models.MODELS, "changed", models.PackagedModel(**{**vars(model), "sha256": "0" * 64}))
    with pytest.raises(InputError, match="SHA-256"):
        models.verified_path("changed")


def test_sigmoid_keeps_the_order_of_large_logits():
    probabilities = sigmoid([-800, -8.3, -1.2, 4, 18, 20, 800])
    assert (np.diff(probabilities) > 0).all()
    assert np.isfinite(probabilities).all()
    assert (probabilities[1:6] >= 0.5).sum() == 3


def test_keys_keep_parts_apart():
    assert make_key("a", "bc") != make_key("ab", "c")


VALUES = {bytes([i]) * 32: bytes([i, i + 1]) * 4 for i in range(50)}


def test_values_come_back_from_disk(tmp_path):
    Cache(tmp_path / "c", pack={}).put(VALUES)
    assert Cache(tmp_path / "c", pack={}).get(VALUES) == VALUES
    assert Cache(tmp_path / "c", pack={}).get([b"x" * 32]) == {}


def test_a_changed_value_counts_as_missing(tmp_path):
    Cache(tmp_path / "c", pack={}).put(VALUES)
    with sqlite3.connect(tmp_path / "c") as connection:
        connection.execute("UPDATE results SET value = x'00' WHERE key = ?", (b"\1" * 32,))
        connection.execute("UPDATE results SET value = 7 WHERE key = ?", (b"\2" * 32,))
    connection.close()
    found = Cache(tmp_path / "c", pack={}).get(VALUES)
    assert found == {key: value for key, value in VALUES.items() if key[0] not in (1, 2)}


@pytest.mark.parametrize("share", [0.0, 0.1, 0.5, 0.9])
def test_a_truncated_file_is_never_wrong_and_works_on(tmp_path, share):
    Cache(tmp_path / "c", pack={}).put(VALUES)
    content = (tmp_path / "c").read_bytes()
    (tmp_path / "c").write_bytes(content[: int(len(content) * share)])
    damaged = Cache(tmp_path / "c", pack={})
    assert damaged.get(VALUES).items() <= VALUES.items()
    damaged.put(VALUES)
    assert damaged.get(VALUES) == VALUES


@pytest.mark.parametrize("seed", range(20))
def test_flipped_bits_are_never_wrong_and_work_on(tmp_path, seed):
    Cache(tmp_path / "c", pack={}).put(VALUES)
    content = bytearray((tmp_path / "c").read_bytes())
    generator = np.random.default_rng(seed)
    for position in generator.integers(len(content), size=20):
        content[position] ^= 1 << int(generator.integers(8))
    (tmp_path / "c").write_bytes(content)
    damaged = Cache(tmp_path / "c", pack={})
    assert damaged.get(VALUES).items() <= VALUES.items()
    damaged.put(VALUES)
    # A damaged tree may hide a row; what is hidden is computed again.
    assert damaged.get(VALUES).items() <= VALUES.items()


def test_a_cache_that_cannot_be_made_is_replaced_by_memory(tmp_path):
    (tmp_path / "file").write_text("not a folder")
    with pytest.warns(UserWarning, match="kept in memory"):
        cache = Cache(tmp_path / "file" / "c", pack={})
    cache.put(VALUES)
    assert cache.get(VALUES) == VALUES


def test_two_processes_share_one_cache(tmp_path):
    code = (
        "import sys; from rag_lab.models import Cache\n"
        "cache = Cache(sys.argv[1], pack={})\n"
        "for i in range(200):\n"
        "    cache.put({bytes([i]) * 32: sys.argv[2].encode() * i})\n"
        "assert not cache.memory\n"
    )
    command = [sys.executable, "-c", code, str(tmp_path / "c")]
    running = [subprocess.Popen([*command, name], env=os.environ) for name in ("a", "a")]
    assert [process.wait() for process in running] == [0, 0]
    values = {bytes([i]) * 32: b"a" * i for i in range(200)}
    assert Cache(tmp_path / "c", pack={}).get(values) == values


def test_a_pack_is_read_back_and_can_be_ignored(tmp_path, monkeypatch):
    values = {b"v" * 32: np.arange(384, dtype="<f2").tobytes(), b"s" * 32: np.float32(1.5).tobytes()}
    write_pack(tmp_path / "pack.npz", values)
    monkeypatch.setattr(models, "pack_path", lambda: tmp_path / "pack.npz")
    read_pack.cache_clear()
    monkeypatch.delenv("RAG_LAB_FRESH", raising=False)
    assert read_pack() == values
    read_pack.cache_clear()
    monkeypatch.setenv("RAG_LAB_FRESH", "1")
    assert read_pack() == {}
    read_pack.cache_clear()


def test_importing_the_metrics_loads_neither_torch_nor_ranx():
    code = "import sys, rag_lab.metrics; print([m for m in ('torch', 'ranx', 'pandas', 'scipy') if m in sys.modules])"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout == "[]\n"
