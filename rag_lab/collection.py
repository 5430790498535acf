"""The collection folder: documents, queries, evidence spans, judgements.

::

    corpus.jsonl      {"_id", "title", "text", "metadata": {…}}
    queries.jsonl     {"_id", "text", "metadata": {"type", "language", "split", …}}
    evidence.jsonl    {"query_id", "doc_id", "start", "end", "grade"}
    qrels/<split>.tsv query-id ⇥ corpus-id ⇥ score

This is BEIR's layout with evidence spans beside it. A span is half-open,
counts code points of the document's text and has a grade from 0 to 3.
"""

import json
import math
import os
import re
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from rag_lab.errors import InputError

QRELS_HEADER = "query-id\tcorpus-id\tscore"
MAX_PROBLEMS = 50
INTEGER = re.compile(r"[+-]?[0-9]{1,18}")


@dataclass(frozen=True)
class Document:
    """A document; offsets of spans refer to `text`, never to the title."""

    id: str
    text: str
    title: str = ""
    metadata: dict = field(default_factory=dict)


@dataclass(frozen=True)
class Query:
    """A query; ``metadata["answerable"]`` is False when the corpus has no answer."""

    id: str
    text: str
    metadata: dict = field(default_factory=dict)


@dataclass(frozen=True)
class Span:
    """A graded passage ``text[start:end]`` of a document, for one query."""

    query_id: str
    doc_id: str
    start: int
    end: int
    grade: int


@dataclass(frozen=True)
class Collection:
    """Documents and queries by id, evidence spans, and document judgements.

    Attributes
    ----------
    documents : dict of str to Document
    queries : dict of str to Query
    spans : list of Span
        In the order of the file.
    qrels : dict of str to dict
        ``{split: {query_id: {doc_id: grade}}}``.
    """

    documents: dict
    queries: dict
    spans: list = field(default_factory=list)
    qrels: dict = field(default_factory=dict)

    def spans_by_query(self):
        """Return ``{query_id: [Span, …]}`` for the queries that have spans."""
        grouped = {}
        for span in self.spans:
            grouped.setdefault(span.query_id, []).append(span)
        return grouped

    def all_qrels(self):
        """Return the judgements of all splits as ``{query_id: {doc_id: grade}}``."""
        merged = {}
        for judgements in self.qrels.values():
            for query_id, grades in judgements.items():
                merged.setdefault(query_id, {}).update(grades)
        return merged


def embedded_path():
    """Return the folder of the collection that comes with the package."""
    return Path(__file__).parent / "data" / "skerry_line"


def load_embedded():
    """Load the collection that comes with the package."""
    return load_collection(embedded_path())


def load_collection(folder):
    """Read and check a collection folder.

    Parameters
    ----------
    folder : str or Path

    Returns
    -------
    Collection

    Raises
    ------
    InputError
        Lists every problem as ``file:line: what is wrong, what is expected``.
    """
    folder = Path(folder)
    if not folder.is_dir():
        raise InputError(f"{folder}: no such folder; expected a collection with corpus.jsonl")
    problems = []
    documents = _read_records(folder / "corpus.jsonl", _document, problems)
    queries = _read_records(folder / "queries.jsonl", _query, problems)
    evidence = folder / "evidence.jsonl"
    spans = _read_spans(evidence, documents, queries, problems) if evidence.exists() else []
    qrels = {}
    for path in sorted(folder.glob("qrels/*.tsv")):
        qrels[path.stem] = _read_split(path, documents, queries, problems)
    if not evidence.exists() and not qrels:
        problems.append(f"{folder}: no labels; expected evidence.jsonl or qrels/<split>.tsv")
    problems += [] if problems else _contradictions(folder, queries, spans, qrels)
    if problems:
        raise InputError(_first(problems))
    return Collection(documents, queries, spans, qrels)


def _first(problems):
    """Cut a very long list of problems, and say so."""
    if len(problems) <= MAX_PROBLEMS:
        return problems
    return problems[:MAX_PROBLEMS] + [f"… and {len(problems) - MAX_PROBLEMS} more problems"]


def _contradictions(folder, queries, spans, qrels):
    """A query flagged unanswerable must not have a positive label."""
    positive = {span.query_id for span in spans if span.grade > 0}
    for judgements in qrels.values():
        positive |= {query for query, grades in judgements.items() if max(grades.values(), default=0) > 0}
    return [
        f'{folder}: query {shorten(query.id)} has "answerable": false and a label above 0; expected one or the other'
        for query in queries.values()
        if query.metadata.get("answerable") is False and query.id in positive
    ]


def read_lines(path) -> Iterator[tuple[int, str]]:
    """Yield ``(line number, line)`` of a UTF-8 file, without blank lines.

    A byte-order mark and CRLF line ends are accepted. Only ``\\n`` ends a line:
    Unicode has more line separators, and they may stand inside a text.

    Raises
    ------
    InputError
        If the file is missing, unreadable, or not UTF-8.
    """
    try:
        with open(path, "rb") as file:
            for number, raw in enumerate(file, start=1):
                if number == 1:
                    raw = raw.removeprefix(b"\xef\xbb\xbf")
                try:
                    line = raw.decode("utf-8")
                except UnicodeDecodeError as error:
                    raise InputError(f"{path}:{number}: {error}; expected UTF-8") from None
                line = line.removesuffix("\n").removesuffix("\r")
                if line.strip():
                    yield number, line
    except OSError as error:
        raise InputError(f"{path}: {error.strerror}; expected a readable file") from None


def _parse_json(line):
    """Return the object in `line`, or raise ValueError saying what is wrong."""
    try:
        record = json.loads(line, parse_constant=_not_finite, parse_float=_finite)
    except RecursionError:
        raise ValueError("JSON nested too deeply; expected one flat object") from None
    except json.JSONDecodeError as error:
        raise ValueError(f"broken JSON ({error.msg} at column {error.colno}); expected one object a line") from None
    if not isinstance(record, dict):
        raise ValueError(f"found {type(record).__name__}; expected a JSON object")
    if _has_surrogate(record):
        raise ValueError("a lone surrogate (half of a character); expected valid Unicode")
    return record


def _not_finite(name):
    raise ValueError(f"{name} is not JSON; expected a finite number")


def _finite(digits):
    number = float(digits)
    if not math.isfinite(number):
        raise ValueError(f"{shorten(digits)} is too large; expected a finite number")
    return number


def _has_surrogate(record):
    try:
        json.dumps(record, ensure_ascii=False).encode("utf-8")
    except UnicodeEncodeError:
        return True
    return False


def _check_text(record, name, required):
    value = record.get(name)
    if value is None and not required:
        return ""
    if not isinstance(value, str):
        raise ValueError(f'"{name}" is {shorten(value)}; expected a string')
    return value


def _check_id(record, name):
    value = _check_text(record, name, required=True)
    if not value:
        raise ValueError(f'"{name}" is empty; expected an id')
    return value


def _check_metadata(record):
    metadata = record.get("metadata")
    if metadata is None:
        return {}
    if not isinstance(metadata, dict):
        raise ValueError(f'"metadata" is {shorten(metadata)}; expected an object')
    return metadata


def _document(record):
    return Document(
        _check_id(record, "_id"),
        _check_text(record, "text", required=True),
        _check_text(record, "title", required=False),
        _check_metadata(record),
    )


def _query(record):
    metadata = _check_metadata(record)
    for name in ("split", "language", "type"):
        if name in metadata and not isinstance(metadata[name], str):
            raise ValueError(f'"{name}" is {shorten(metadata[name])}; expected a string')
    if not isinstance(metadata.get("answerable", True), bool):
        raise ValueError(f'"answerable" is {shorten(metadata["answerable"])}; expected true or false')
    return Query(_check_id(record, "_id"), _check_text(record, "text", required=True), metadata)


def _json_lines(path, problems):
    """Yield ``(number, record)``; problems of a line are recorded, not raised."""
    empty = True
    try:
        for number, line in read_lines(path):
            empty = False
            try:
                yield number, _parse_json(line)
            except ValueError as error:
                problems.append(f"{path}:{number}: {error}")
    except InputError as error:
        problems.extend(error.problems)
        return
    if empty:
        problems.append(f"{path}: the file is empty; expected one JSON object a line")


def _read_records(path, parse, problems):
    records = {}
    for number, record in _json_lines(path, problems):
        try:
            item = parse(record)
            if item.id in records:
                raise ValueError(f"duplicate id {shorten(item.id)}; expected every _id once")
            records[item.id] = item
        except ValueError as error:
            problems.append(f"{path}:{number}: {error}")
    return records


def _read_spans(path, documents, queries, problems):
    spans, seen = [], set()
    for number, record in _json_lines(path, problems):
        try:
            span = _span(record, documents, queries)
            place = (span.query_id, span.doc_id, span.start, span.end)
            if place in seen:
                raise ValueError("duplicate span; expected every (query, document, start, end) once")
            seen.add(place)
            spans.append(span)
        except ValueError as error:
            problems.append(f"{path}:{number}: {error}")
    return spans


def _span(record, documents, queries):
    query_id, doc_id = _check_id(record, "query_id"), _check_id(record, "doc_id")
    if query_id not in queries:
        raise ValueError(f"unknown query {shorten(query_id)}; expected an _id of queries.jsonl")
    if doc_id not in documents:
        raise ValueError(f"unknown document {shorten(doc_id)}; expected an _id of corpus.jsonl")
    start, end, grade = (record.get(name) for name in ("start", "end", "grade"))
    for name, value in (("start", start), ("end", end), ("grade", grade)):
        if type(value) is not int:  # bool is an int, and 1.0 is not an offset
            raise ValueError(f'"{name}" is {shorten(value)}; expected an integer')
    length = len(documents[doc_id].text)
    if not 0 <= start < end <= length:
        raise ValueError(f"span {start}–{end} is empty or outside; expected 0 ≤ start < end ≤ {length}")
    if not 0 <= grade <= 3:
        raise ValueError(f"grade {grade}; expected 0, 1, 2 or 3")
    return Span(query_id, doc_id, start, end, grade)


def parse_qrels_row(line):
    """Return ``(query_id, doc_id, grade)`` of a tab-separated row, else raise ValueError."""
    columns = line.split("\t")
    if len(columns) != 3 or not columns[0] or not columns[1]:
        raise ValueError(f"{shorten(line)}; expected query-id, corpus-id and score, tab-separated")
    return columns[0], columns[1], parse_integer(columns[2])


def _read_split(path, documents, queries, problems):
    judgements = {}
    try:
        for number, line in read_lines(path):
            if number == 1 and line == QRELS_HEADER:
                continue
            try:
                query_id, doc_id, grade = parse_qrels_row(line)
                if query_id not in queries:
                    raise ValueError(f"unknown query {shorten(query_id)}; expected an _id of queries.jsonl")
                if doc_id not in documents:
                    raise ValueError(f"unknown document {shorten(doc_id)}; expected an _id of corpus.jsonl")
                if doc_id in judgements.get(query_id, {}):
                    raise ValueError("duplicate row; expected every (query, document) once")
                judgements.setdefault(query_id, {})[doc_id] = grade
            except ValueError as error:
                problems.append(f"{path}:{number}: {error}")
    except InputError as error:
        problems.extend(error.problems)
    if not judgements and not problems:
        problems.append(f"{path}: no rows; expected query-id, corpus-id and score, tab-separated")
    return judgements


def parse_integer(text):
    """Return the integer written in `text` (ASCII digits), else raise ValueError.

    ``int`` alone would also read ``1_000`` and digits of other scripts.
    """
    if not INTEGER.fullmatch(text):
        raise ValueError(f"{shorten(text)} is not a grade; expected an integer")
    return int(text)


def shorten(value, length=60):
    """Return `value` as it is shown in an error message, on one short line."""
    shown = repr(value)
    return shown if len(shown) <= length else shown[: length - 1] + "…"


def save_collection(collection, folder):
    """Write a collection folder; reading it gives an equal collection."""
    folder = Path(folder)
    (folder / "qrels").mkdir(parents=True, exist_ok=True)
    write_text(
        folder / "corpus.jsonl",
        _jsonl(
            {"_id": d.id, "title": d.title, "text": d.text, "metadata": d.metadata}
            for d in collection.documents.values()
        ),
    )
    write_text(
        folder / "queries.jsonl",
        _jsonl({"_id": q.id, "text": q.text, "metadata": q.metadata} for q in collection.queries.values()),
    )
    if collection.spans:
        write_text(folder / "evidence.jsonl", _jsonl(vars(span) for span in collection.spans))
    for split, judgements in collection.qrels.items():
        if Path(split).name != split or split in ("", ".", ".."):
            raise InputError(f"split {shorten(split)}; expected a plain file name")
        rows = [f"{q}\t{d}\t{grade}" for q, grades in judgements.items() for d, grade in grades.items()]
        write_text(folder / "qrels" / f"{split}.tsv", "\n".join([QRELS_HEADER, *rows]) + "\n")


def _jsonl(records):
    return "".join(json.dumps(record, ensure_ascii=False) + "\n" for record in records)


def write_text(path, text):
    """Write `text` as UTF-8 so that `path` holds the old content or the new, never half.

    The text goes to a temporary file in the same folder, which then replaces `path`.
    """
    path = Path(path)
    handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    try:
        with open(handle, "w", encoding="utf-8", newline="") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        # mkstemp makes the file private; give it the mode that open() would.
        umask = os.umask(0)
        os.umask(umask)
        os.chmod(temporary, 0o666 & ~umask)
        os.replace(temporary, path)
    except BaseException:
        Path(temporary).unlink(missing_ok=True)
        raise
