"""The collection folder and the TREC files: what is accepted, what is one clear error."""

import json

import pytest

from rag_lab.collection import Collection, Document, Query, Span, load_collection, load_embedded, save_collection
from rag_lab.errors import InputError
from rag_lab.trec import from_ranx, read_qrels, read_run, to_ranx, write_qrels, write_run

DOCUMENTS = {"d1": "The boat leaves at 06:10.", "d2": "门锁 and e\u0301."}
QUERIES = {"q1": "When?"}


def write(path, *lines, newline="\n", bom=b""):
    path.write_bytes(bom + newline.join([*lines, ""]).encode("utf-8"))
    return path


def test_a_valid_collection_loads(make_collection):
    path = make_collection(DOCUMENTS, QUERIES, [("q1", "d1", 19, 24, 3)], {"dev": [("q1", "d1", 3), ("q1", "d2", -1)]})
    collection = load_collection(path)
    span = collection.spans[0]
    assert collection.documents["d1"].text[span.start : span.end] == "06:10"
    assert collection.qrels == {"dev": {"q1": {"d1": 3, "d2": -1}}}


def test_saving_and_loading_give_the_same(tmp_path):
    collection = Collection(
        {"d": Document("d", "a\u2028b\r\nc\0", "t", {"year": 2025, "authority": 0.5})},
        {"q": Query("q", "text", {"split": "dev"})},
        [Span("q", "d", 0, 3, 2)],
        {"dev": {"q": {"d": 2}}},
    )
    save_collection(collection, tmp_path / "c")
    assert load_collection(tmp_path / "c") == collection


def test_byte_order_mark_and_crlf_are_accepted_and_text_is_not_altered(make_collection):
    path = make_collection(DOCUMENTS, QUERIES, [("q1", "d2", 0, 2, 3)])
    for name in ("corpus", "queries", "evidence"):
        file = path / f"{name}.jsonl"
        file.write_bytes(b"\xef\xbb\xbf" + file.read_bytes().replace(b"\n", b"\r\n"))
    assert {d.id: d.text for d in load_collection(path).documents.values()} == DOCUMENTS


def test_every_problem_is_listed_with_its_line(make_collection):
    path = make_collection(DOCUMENTS, QUERIES, [("q1", "d1", 0, 99, 3), ("q9", "d1", 0, 1, 3), ("q1", "d1", 0, 1, 4)])
    with pytest.raises(InputError) as caught:
        load_collection(path)
    assert [problem.split("evidence.jsonl:")[1][:2] for problem in caught.value.problems] == ["1:", "2:", "3:"]


SPAN = {"query_id": "q1", "doc_id": "d1", "start": 0, "end": 3, "grade": 3}


@pytest.mark.parametrize(
    ("name", "line", "said"),
    [
        ("corpus", '{"_id": "d1", "text": "again"}', "duplicate id"),
        ("corpus", '{"_id": 7, "text": "x"}', "expected a string"),
        ("corpus", '{"_id": "", "text": "x"}', "empty"),
        ("corpus", '{"_id": "x"}', "expected a string"),
        ("corpus", '{"_id": "x", "text": "\\ud800"}', "surrogate"),
        ("corpus", '{"_id": "x", "text": "a", "metadata": []}', "expected an object"),
        ("corpus", '{"_id": "x", "text": "a", "metadata": {"n": NaN}}', "finite"),
        ("corpus", '{"_id": "x", "text": "a", "metadata": {"n": 1e999}}', "finite"),
        ("corpus", '{"_id": "x", "text"', "broken JSON"),
        ("corpus", "[]", "JSON object"),
        ("corpus", "[" * 200_000, "JSON"),
        ("corpus", "\0", "broken JSON"),
        ("queries", '{"_id": "q2", "text": "x", "metadata": {"answerable": "no"}}', "true or false"),
        ("queries", '{"_id": "q2", "text": "x", "metadata": {"split": 1}}', "expected a string"),
        ("evidence", json.dumps(SPAN), "duplicate span"),
        ("evidence", json.dumps({**SPAN, "start": 3}), "empty"),
        ("evidence", json.dumps({**SPAN, "start": -1}), "outside"),
        ("evidence", json.dumps({**SPAN, "end": 3.0}), "expected an integer"),
        ("evidence", json.dumps({**SPAN, "grade": True}), "expected an integer"),
        ("evidence", json.dumps({**SPAN, "grade": -1}), "expected 0, 1, 2 or 3"),
        ("evidence", json.dumps({**SPAN, "doc_id": "../d1"}), "unknown document"),
        ("qrels/dev", "q1\td1\t2", "duplicate row"),
        ("qrels/dev", "q1\td2\t2.0", "expected an integer"),
        ("qrels/dev", "q1\td2\t1_0", "expected an integer"),
        ("qrels/dev", "q1 d2 2", "tab-separated"),
        ("qrels/dev", "q9\td2\t2", "unknown query"),
        ("qrels/dev", "q1\td9\t2", "unknown document"),
    ],
)
def test_a_bad_line_is_a_clear_error(make_collection, rag_lab, name, line, said):
    path = make_collection(DOCUMENTS, QUERIES, [tuple(SPAN.values())], {"dev": [("q1", "d1", 3)]})
    file = path / (f"{name}.tsv" if "qrels" in name else f"{name}.jsonl")
    with open(file, "a", encoding="utf-8") as opened:
        opened.write(line + "\n")
    with pytest.raises(InputError, match=said) as caught:
        load_collection(path)
    assert len(caught.value.problems) == 1
    assert str(file) in caught.value.problems[0]
    if name in ("evidence", "qrels/dev"):
        assert said in rag_lab("check", path, code=1).err


def test_missing_and_empty_files(make_collection, tmp_path, rag_lab):
    with pytest.raises(InputError, match="no such folder"):
        load_collection(tmp_path / "nowhere")
    path = make_collection(DOCUMENTS, QUERIES)
    with pytest.raises(InputError, match="no labels"):
        load_collection(path)
    (path / "corpus.jsonl").write_text("")
    assert "empty" in rag_lab("check", path, code=1).err
    (path / "queries.jsonl").unlink()
    assert "queries.jsonl" in rag_lab("check", path, code=1).err
    (path / "corpus.jsonl").write_bytes(b'{"_id": "\xff"}\n')
    assert "UTF-8" in rag_lab("check", path, code=1).err


def test_an_unanswerable_query_with_an_answer_is_an_error(make_collection):
    queries = {"q1": {"_id": "q1", "text": "x", "metadata": {"answerable": False}}}
    with pytest.raises(InputError, match="answerable"):
        load_collection(make_collection(DOCUMENTS, queries, [("q1", "d1", 0, 3, 1)]))
    assert load_collection(make_collection(DOCUMENTS, queries, [("q1", "d1", 0, 3, 0)], folder="other"))


def test_names_of_splits_cannot_leave_the_folder(tmp_path):
    collection = Collection({"d": Document("d", "x")}, {"q": Query("q", "x")}, [], {"../out": {"q": {"d": 1}}})
    with pytest.raises(InputError, match="split"):
        save_collection(collection, tmp_path / "c")


def test_the_embedded_collection_is_valid(rag_lab):
    collection = load_embedded()
    counts = rag_lab("check", rag_lab("data").out.strip(), "--format", "json").json["counts"]
    assert counts["documents"] == len(collection.documents)
    assert counts["unlabelled"] == 0


RUN = {"q2": {"b": 0.1 + 0.2, "a": -1e-300}, "q1": {"a": 3.0, "文": 3.0}}
QRELS = {"q1": {"a": 1, "b": -2}, "q2": {"文": 0}}


def test_runs_and_qrels_survive_writing_and_reading(tmp_path):
    write_run(tmp_path / "run", RUN)
    write_qrels(tmp_path / "qrels", QRELS)
    assert read_run(tmp_path / "run") == RUN
    assert read_qrels(tmp_path / "qrels") == QRELS
    assert (tmp_path / "run").read_text(encoding="utf-8").splitlines()[2:] == [
        "q1 Q0 文 1 3.0 rag_lab",
        "q1 Q0 a 2 3.0 rag_lab",
    ]


def test_qrels_with_a_header_are_read(tmp_path):
    path = write(tmp_path / "q.tsv", "query-id\tcorpus-id\tscore", "q 1\td\t2", newline="\r\n", bom=b"\xef\xbb\xbf")
    assert read_qrels(path) == {"q 1": {"d": 2}}


@pytest.mark.parametrize("bad", ["a b", "", "a\tb", "a\u3000b", "a\n"])
def test_ids_that_a_trec_file_cannot_hold(tmp_path, bad):
    for call in (lambda: write_run(tmp_path / "r", {bad: ["d"]}), lambda: write_qrels(tmp_path / "q", {"q": {bad: 1}})):
        with pytest.raises(InputError, match="id"):
            call()
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    "line",
    [
        "q Q0 d 1 nan t",
        "q Q0 d 1 1e999 t",
        "q Q0 d 1 inf t",
        "q Q0 d 1 1_0 t",
        "q Q0 d 1 ٣ t",
        "q Q0 d 1 2",
        "q Q0 e 1 2 t",
        "\0",
    ],
)
def test_a_bad_line_of_a_run(tmp_path, rag_lab, line):
    path = write(tmp_path / "run", "q Q0 e 1 2.5 t", line)
    with pytest.raises(InputError, match="run:2:"):
        read_run(path)
    qrels = write(tmp_path / "qrels", "q 0 e 1")
    assert "run:2:" in rag_lab("score", qrels, path, code=1).err


@pytest.mark.parametrize("line", ["q 0 d 1.0", "q 0 d x", "q 0 d", "q 0 d 1 2", "q 0 e 1", "q 0 d 1_0"])
def test_a_bad_line_of_qrels(tmp_path, line):
    with pytest.raises(InputError, match="qrels:2:"):
        read_qrels(write(tmp_path / "qrels", "q 0 e 1", line))


def test_ranx_objects_both_ways():
    assert from_ranx(to_ranx(qrels={"q": {"a": 2, "b": 1}})) == {"q": {"a": 2, "b": 1}}
    assert from_ranx(to_ranx(run={"q": {"a": 0.5, "b": 0.25}})) == {"q": {"a": 0.5, "b": 0.25}}
