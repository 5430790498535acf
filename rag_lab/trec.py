"""trec_eval's file formats, and ranx's objects.

``qrels``  query-id  0  document-id  grade          (white space between columns)
``run``    query-id  Q0  document-id  rank  score  tag

BEIR's tab-separated qrels with their header are read too. trec_eval ignores
the rank column and sorts by score, then by document id; so does this package.
"""

import math
import re
import sys

from rag_lab.collection import QRELS_HEADER, parse_integer, parse_qrels_row, read_lines, shorten, write_text
from rag_lab.errors import InputError
from rag_lab.metrics import order_by_score, score_pairs

MAX_PROBLEMS = 20
NUMBER = re.compile(r"[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d+)?", re.ASCII)
COLUMNS = re.compile(r"[^ \t\r\f\v]+")


def read_qrels(path):
    """Read judgements.

    Returns
    -------
    dict
        ``{query_id: {doc_id: grade}}``.

    Raises
    ------
    InputError
        Lists the first problems as ``file:line: what is wrong, what is expected``.
    """
    parse = _parse_qrels

    def choose(number, line):
        nonlocal parse
        if number == 1 and line == QRELS_HEADER:
            parse = parse_qrels_row
            return None
        return parse(line)

    return _read(path, choose)


def read_run(path):
    """Read a run.

    Returns
    -------
    dict
        ``{query_id: {doc_id: score}}``.

    Raises
    ------
    InputError
        For broken lines, duplicate documents, and scores that are no finite numbers.
    """
    return _read(path, lambda number, line: _parse_run(line))


def _read(path, parse):
    """Collect ``{first: {second: third}}`` of the rows that `parse` returns."""
    rows, problems = {}, []
    for number, line in read_lines(path):
        try:
            row = parse(number, line)
            if row is None:
                continue
            query_id, doc_id, value = row
            if doc_id in rows.get(query_id, ()):
                raise ValueError(f"query {shorten(query_id)} has document {shorten(doc_id)} twice; expected it once")
            # Document ids repeat over queries: keep one copy of each in memory.
            rows.setdefault(query_id, {})[sys.intern(doc_id)] = value
        except ValueError as error:
            problems.append(f"{path}:{number}: {error}")
            if len(problems) == MAX_PROBLEMS:
                problems.append("… reading stopped here")
                break
    if problems:
        raise InputError(problems)
    if not rows:
        raise InputError(f"{path}: the file is empty; expected at least one row")
    return rows


def _parse_qrels(line):
    columns = COLUMNS.findall(line)
    if len(columns) != 4:
        raise ValueError(f"{shorten(line)}; expected 4 columns: query-id 0 document-id grade")
    return columns[0], columns[2], parse_integer(columns[3])


def _parse_run(line):
    columns = COLUMNS.findall(line)
    if len(columns) < 6:  # the tag may be several words, which trec_eval skips
        raise ValueError(f"{shorten(line)}; expected 6 columns: query-id Q0 document-id rank score tag")
    # float() alone would also read nan, inf and 1_0.
    score = float(columns[4]) if NUMBER.fullmatch(columns[4]) else math.nan
    if not math.isfinite(score):
        raise ValueError(f"score {shorten(columns[4])}; expected a finite number")
    return columns[0], columns[2], score


def write_qrels(path, qrels):
    """Write judgements as a trec_eval file; reading it gives the same grades."""
    rows = [
        f"{_word(query_id)} 0 {_word(doc_id)} {grade}\n"
        for query_id, judgements in qrels.items()
        for doc_id, grade in judgements.items()
    ]
    write_text(path, "".join(rows))


def write_run(path, run, tag="rag_lab"):
    """Write a run as a trec_eval file; reading it gives the same scores.

    Parameters
    ----------
    path : str or Path
    run : mapping
        ``{query_id: {doc_id: score}}`` or ``{query_id: [(doc_id, score), …]}``.
    tag : str
        Name of the run, without white space.

    Raises
    ------
    InputError
        For an id with white space, which the format cannot hold.
    """
    rows = []
    for query_id, results in run.items():
        ranked = order_by_score(score_pairs(results, query_id))
        rows += [
            f"{_word(query_id)} Q0 {_word(doc_id)} {rank} {score!r} {_word(tag)}\n"
            for rank, (doc_id, score) in enumerate(ranked, start=1)
        ]
    write_text(path, "".join(rows))


def _word(value):
    if not value or value.split() != [value] or "\0" in value:
        raise InputError(f"id {value!r} is empty or holds white space; the TREC format cannot hold it")
    return value


def to_ranx(qrels=None, run=None):
    """Return ``ranx.Qrels`` or ``ranx.Run`` of the one that is given."""
    import ranx

    if (qrels is None) == (run is None):
        raise InputError("expected either qrels or run")
    if qrels is not None:
        return ranx.Qrels({query_id: dict(grades) for query_id, grades in qrels.items()})
    return ranx.Run({query_id: dict(score_pairs(results, query_id)) for query_id, results in run.items()})


def from_ranx(table):
    """Return the dictionary in a ``ranx.Qrels`` (integer grades) or ``ranx.Run`` (scores)."""
    import ranx

    number = int if isinstance(table, ranx.Qrels) else float
    return {
        query_id: {doc_id: number(value) for doc_id, value in values.items()}
        for query_id, values in table.to_dict().items()
    }
