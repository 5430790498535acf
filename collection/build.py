"""Build the embedded collection from its sources, or check a part of them.

    python collection/build.py                          write rag_lab/data/skerry_line
    python collection/build.py --check technical        check queries/technical.json
    python collection/build.py --check-documents tech-  check documents/tech-*.md

The sources are documents (Markdown with a header), queries with quoted
evidence, and additional labels by quote. Quotes become offsets here, so that
nobody ever counts characters by hand.
"""

import argparse
import hashlib
import json
import re
import sys
from collections import defaultdict
from pathlib import Path

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE.parent))

from rag_lab.collection import Collection, Document, Query, Span, embedded_path, save_collection  # noqa: E402
from rag_lab.text import normalize, tokenize  # noqa: E402

FIELDS = ("title", "document_type", "department", "year", "version", "language", "authority", "updated")
DOCUMENT_TYPES = ("technical", "policy", "narrative", "support")
QUERY_TYPES = ("simple", "complex", "ambiguous")
IDENTIFIER = re.compile(r"[A-Za-z0-9_.+/#-]*(?:[A-Za-z][-_.]?\d|\d[-_.]?[A-Za-z]|[a-z][._][a-z])[A-Za-z0-9_.+/#-]*")
STOP_WORDS = set(
    """a about above after again against all also always am an and any anyone anything are aren as at away back be
    because been before being below between both but by can cannot could d did didn do does doesn doing don done
    down during each either else ever every few for from further get gets getting give go going got had has have
    haven he her here hers him his how i if in instead into is isn it its itself just let ll long m many may me
    might mine more most much must my myself need needs never no nor not now of off on once one only onto or other
    our ours out over own per please put re s same say see shall she should since so some someone something still
    such t take tell than that the their them then there these they thing things this those through till to too
    under until up upon us use used using ve very was wasn way we were what when where whether which while who whom
    whose why will with within without won would yes yet you your yours two three first last new next day days hour
    hours minute minutes time times""".split()
)
CHINESE_STOP_PAIRS = set(
    """可以 什么 怎么 多少 如何 是否 我们 我的 你们 他们 一个 一下 这个 那个 如果 没有 还是 还有 已经 不能 不可 可不 需要
    应该 应当 要求 哪些 哪里 哪个 什么 么时 时候 为什 几个 一起 以及 或者 并且 因为 所以 但是 就是 不是 也是 都是 能不 能否
    有没 吗我 会不 不会 请问 想问 问一 关于 之前 之后 以前 以后 以上 以下 之内 以内 一天 小时 分钟 今天 时间 一次 怎样 这样
    那么 多久 多长 几天 几点 自己 的时 时的 的是 是什 有什 么办 怎麼 是不 不要 到的 了吗 的话 一样 只有 只能 还能 能在 可能 必须
    不得 由于 其他 其它 另外 此外 使用 进行 提供 情况 有关 相关""".split()
)


def content_words(text):
    """Words that carry content: no function words; pairs of characters for Chinese."""
    words = set()
    for term in tokenize(text):
        if term[0] >= "\u2e80":
            words |= {term} if len(term) == 2 and term not in CHINESE_STOP_PAIRS else set()
        elif term not in STOP_WORDS and not term.isdigit() and len(term) > 1:
            words.add(term)
    return words


def same_word(one, other):
    """Whether two words are forms of one word, judged by their beginnings."""
    if one == other or one[0] >= "\u2e80":
        return one == other
    shorter = min(len(one), len(other))
    if shorter < 4:
        return one + "s" == other or other + "s" == one
    kept = max(4, shorter - 1)
    return one[:kept] == other[:kept]


def shared_words(query, quote):
    quote_words = content_words(quote)
    return sorted(w for w in content_words(query) if any(same_word(w, other) for other in quote_words))


def read_document(path):
    """Return the Document in a source file and a list of problems."""
    text = path.read_text(encoding="utf-8")
    match = re.fullmatch(r"---\n(.*?)\n---\n+(.*)", text, re.DOTALL)
    if not match:
        return None, [f"{path.name}: no header between --- lines"]
    fields = dict(
        line.split(": ", 1) if ": " in line else (line.rstrip(":"), "") for line in match[1].split("\n") if line
    )
    fields = {name: value.strip().strip('"').strip() for name, value in fields.items()}
    body = match[2].rstrip("\n") + "\n"
    problems = [f"{path.name}: header lacks {name}" for name in FIELDS if name not in fields]
    problems += [f"{path.name}: header has unknown {name}" for name in fields if name not in FIELDS]
    if problems:
        return None, problems
    metadata = {name: fields[name] for name in FIELDS[1:]}
    try:
        metadata["year"], metadata["authority"] = int(metadata["year"]), float(metadata["authority"])
    except ValueError:
        return None, [f"{path.name}: year or authority is not a number"]
    if metadata["document_type"] not in DOCUMENT_TYPES:
        problems.append(f"{path.name}: document_type {metadata['document_type']}")
    if metadata["language"] not in ("en", "zh") or not 0 <= metadata["authority"] <= 1:
        problems.append(f"{path.name}: language or authority")
    if not re.fullmatch(r"\d{4}-\d\d-\d\d", metadata["updated"]):
        problems.append(f"{path.name}: updated is no date")
    if not 400 <= len(body) <= 15_000:
        problems.append(f"{path.name}: {len(body)} characters, expected 400 to 15,000")
    return Document(path.stem, body, fields["title"], metadata), problems


def read_documents(prefix=""):
    documents, problems = {}, []
    for path in sorted((HERE / "documents").glob(f"{prefix}*.md")):
        document, found = read_document(path)
        problems += found
        if document:
            documents[document.id] = document
    return documents, problems


def locate(document, quote, occurrence=None):
    """Return the (start, end) of a quote; ambiguous or missing quotes are a ValueError."""
    starts = [match.start() for match in re.finditer(f"(?={re.escape(quote)})", document.text)]
    if not starts:
        raise ValueError(f"quote not found in {document.id}: {quote[:70]!r}")
    if occurrence is None and len(starts) > 1:
        raise ValueError(f"quote occurs {len(starts)} times in {document.id}, give its occurrence: {quote[:70]!r}")
    start = starts[(occurrence or 1) - 1]
    return start, start + len(quote)


def to_span(query_id, row, documents):
    if row["doc"] not in documents:
        raise ValueError(f"unknown document {row['doc']!r}")
    if row["grade"] not in (0, 1, 2, 3) or not row["quote"].strip() or row["quote"] != row["quote"].strip():
        raise ValueError(f"grade or quote of a row of {row['doc']}")
    start, end = locate(documents[row["doc"]], row["quote"], row.get("occurrence"))
    return Span(query_id, row["doc"], start, end, row["grade"])


def check_query(record, quotes):
    """Return what is wrong with a query, given its (quote, grade) pairs."""
    problems = []
    if record["type"] not in QUERY_TYPES or record["language"] not in ("en", "zh"):
        problems.append("type or language")
    grades = [grade for _, grade in quotes]
    if record["answerable"] and max(grades, default=0) < 2:
        problems.append("answerable, but no evidence of grade 2 or 3")
    if not record["answerable"] and max(grades, default=0) > 0:
        problems.append("unanswerable, but evidence above grade 0")
    best = [quote for quote, grade in quotes if grade == 3]
    if "paraphrase" in record["tags"]:
        if not best:
            problems.append("tagged paraphrase, but no evidence of grade 3")
        for quote in best:
            if shared := shared_words(record["text"], quote):
                problems.append(f"tagged paraphrase, but shares {shared} with {quote[:50]!r}")
    if "exact-id" in record["tags"]:
        names = {normalize(name.strip(".-/")) for name in IDENTIFIER.findall(record["text"])}
        if not names or not best:
            problems.append("tagged exact-id, but no identifier in the query or no evidence of grade 3")
        elif not any(name in normalize(quote) for quote in best for name in names):
            problems.append(f"tagged exact-id, but no grade-3 quote holds any of {sorted(names)}")
    return problems


def read_queries(pattern="*"):
    records = []
    for path in sorted((HERE / "queries").glob(f"{pattern}.json")):
        records += json.loads(path.read_text(encoding="utf-8"))
    return records


def check_part(name):
    documents, _ = read_documents()
    problems, spans = [], 0
    for record in read_queries(name):
        quotes = []
        for row in record["evidence"]:
            try:
                to_span(record["id"], row, documents)
                quotes.append((row["quote"], row["grade"]))
                spans += 1
            except (ValueError, IndexError, KeyError) as error:
                problems.append(f"{record['id']}: {error}")
        problems += [f"{record['id']}: {problem}" for problem in check_query(record, quotes)]
    return problems, f"{len(read_queries(name))} queries, {spans} spans"


def labels_of(records, documents):
    """Return spans of all annotators and the documents read, after adjudication.

    ``labels/*.json`` hold further labels ``{query: {"evidence": […], "read": […]}}``.
    ``adjudication.json`` is a list of decisions; a row with ``"grade": null``
    withdraws a span. A later source wins where two mark the same span.
    """
    grades, read, problems = {}, defaultdict(set), []

    def add(query_id, row):
        try:
            span = to_span(query_id, {**row, "grade": row["grade"] or 0}, documents)
        except (ValueError, IndexError, KeyError) as error:
            problems.append(f"{query_id}: {error}")
            return
        place = (query_id, span.doc_id, span.start, span.end)
        if row["grade"] is None:
            grades.pop(place, None)
        else:
            grades[place] = span.grade

    for record in records:
        for row in record["evidence"]:
            add(record["id"], row)
    for path in sorted((HERE / "labels").glob("*.json")):
        for query_id, found in json.loads(path.read_text(encoding="utf-8")).items():
            for row in found.get("evidence", []):
                add(query_id, row)
            read[query_id] |= set(found.get("read", []))
    decisions = HERE / "annotations" / "adjudication.json"
    if decisions.exists():
        for decision in json.loads(decisions.read_text(encoding="utf-8")):
            for row in decision["evidence"]:
                add(decision["query"], row)
    return merge_spans(grades), read, problems


def merge_spans(grades):
    """Drop a span that overlaps one of higher grade by half or more of the shorter.

    Two annotators rarely cut a passage at the same character. Of two readings of
    one passage the higher grade stays, at equal grades the shorter span.
    """
    kept = []
    ordered = sorted(grades.items(), key=lambda item: (-item[1], item[0][3] - item[0][2], item[0]))
    for (query_id, doc_id, start, end), grade in ordered:
        clash = any(
            other.query_id == query_id
            and other.doc_id == doc_id
            and min(end, other.end) - max(start, other.start) >= 0.5 * min(end - start, other.end - other.start)
            for other in kept
        )
        if not clash:
            kept.append(Span(query_id, doc_id, start, end, grade))
    return kept


def split_of(records):
    """Return ``{query id: "dev" or "test"}``: one third dev, within each stratum.

    Strata are language, cross-lingual, answerable, and type; the order within a
    stratum is by a hash of the id, so that the split never depends on labels.
    """
    strata = defaultdict(list)
    for record in records:
        key = (record["language"], "cross-lingual" in record["tags"], record["answerable"], record["type"])
        strata[key].append(record["id"])
    split, position = {}, 0
    for key in sorted(strata):
        for query_id in sorted(strata[key], key=lambda name: hashlib.sha256(name.encode()).hexdigest()):
            split[query_id] = "dev" if position % 3 == 0 else "test"
            position += 1
    return split


def build():
    """Return the collection, or raise SystemExit with all problems."""
    documents, problems = read_documents()
    records = read_queries()
    spans, read, found = labels_of(records, documents)
    problems += found
    split = split_of(records)
    queries, by_query = {}, defaultdict(list)
    for span in spans:
        by_query[span.query_id].append(span)
    for record in records:
        if record["id"] in queries:
            problems.append(f"{record['id']}: duplicate id")
        quotes = [(documents[s.doc_id].text[s.start : s.end], s.grade) for s in by_query[record["id"]]]
        problems += [f"{record['id']}: {problem}" for problem in check_query(record, quotes)]
        metadata = {
            "type": record["type"],
            "language": record["language"],
            "split": split[record["id"]],
            "tags": record["tags"],
            "answerable": record["answerable"],
            "answer": record["answer"],
        }
        queries[record["id"]] = Query(record["id"], record["text"], metadata)
    if problems:
        raise SystemExit("\n".join(problems))
    qrels = {"dev": {}, "test": {}}
    for query_id in queries:
        judged = dict.fromkeys(sorted(read[query_id]), 0)
        for span in by_query[query_id]:
            judged[span.doc_id] = max(judged.get(span.doc_id, 0), span.grade)
        if judged:
            qrels[split[query_id]][query_id] = dict(sorted(judged.items()))
    order = {query_id: position for position, query_id in enumerate(queries)}
    spans.sort(key=lambda span: (order[span.query_id], -span.grade, span.doc_id, span.start))
    return Collection(documents, queries, spans, qrels)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", metavar="NAME", help="check queries/NAME.json")
    parser.add_argument("--check-documents", metavar="PREFIX", help="check documents/PREFIX*.md")
    parser.add_argument("--out", default=embedded_path(), type=Path)
    arguments = parser.parse_args()
    problems = []
    if arguments.check_documents is not None:
        documents, problems = read_documents(arguments.check_documents)
        print(f"{len(documents)} documents, {sum(len(d.text) for d in documents.values()):,} characters")
    if arguments.check:
        found, summary = check_part(arguments.check)
        problems += found
        print(summary)
    if arguments.check or arguments.check_documents is not None:
        print("\n".join(problems) or "no problems")
        raise SystemExit(bool(problems))
    collection = build()
    save_collection(collection, arguments.out)
    print(
        f"{len(collection.documents)} documents, {len(collection.queries)} queries, {len(collection.spans)} spans, "
        f"{sum(len(g) for s in collection.qrels.values() for g in s.values())} judged documents -> {arguments.out}"
    )


if __name__ == "__main__":
    main()
