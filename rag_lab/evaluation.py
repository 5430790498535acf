"""Evaluate a retriever on a collection.

A collection with evidence spans is scored in the views of `rag_lab.labels`;
one with document judgements by the metrics of `rag_lab.metrics`, after chunks
have been collapsed to their documents.
"""

import pandas as pd

from rag_lab.errors import InputError, OptionError
from rag_lab.labels import (
    TAU,
    char_iou,
    char_precision,
    char_recall,
    check_tau,
    chunk_qrels,
    evidence_ndcg_at_k,
    evidence_recall_at_k,
    within_budget,
)
from rag_lab.metrics import (
    DEFAULT_METRICS,
    RULES,
    Evaluation,
    average,
    check_cutoff,
    evaluate,
    parse_cutoff,
    parse_metric,
)
from rag_lab.retrieval import Hit, search_many

# Names on the command line → names of the rules of rag_lab.metrics, for judgements of chunks.
CHUNK_RULES = {"chunk_recall": "recall", **{rule: rule for rule in RULES if rule != "recall"}}
READING_RULES = {"char_recall": char_recall, "char_precision": char_precision, "iou": char_iou}
EVIDENCE_RULES = ("recall", "evidence_ndcg", *READING_RULES)
BUDGET_RULES = ("recall", *READING_RULES)


def parse_evidence_metric(name):
    """Return ``(rule, cutoff, unit)`` of a metric on spans; unit is "chunks" or "chars".

    Examples
    --------
    >>> parse_evidence_metric("char_recall@2000chars")
    ('char_recall', 2000, 'chars')
    """
    rule, at, cutoff = str(name).partition("@")
    if rule not in EVIDENCE_RULES and rule not in CHUNK_RULES:
        known = ", ".join([*EVIDENCE_RULES, *CHUNK_RULES])
        raise OptionError(f"unknown metric {name!r}; expected one of {known}, with or without @k")
    if not at:
        return rule, None, "chunks"
    unit = "chars" if cutoff.endswith("chars") else "chunks"
    if unit == "chars" and rule not in BUDGET_RULES:
        raise OptionError(f"metric {name!r}: {rule} has no character budget; {', '.join(BUDGET_RULES)} have one")
    return rule, parse_cutoff(name, cutoff.removesuffix("chars")), unit


def choose_labels(collection, labels=None, chunker="fixed:512"):
    """Return which labels to score with, "evidence" or "qrels".

    Without a wish, whole documents are scored with qrels and chunks with
    evidence, as far as the collection has them.
    """
    available = [kind for kind, has in (("evidence", collection.spans), ("qrels", collection.qrels)) if has]
    if labels is not None and labels not in ("evidence", "qrels"):
        raise OptionError(f"labels is {labels!r}; expected evidence or qrels")
    if labels is not None and labels not in available:
        raise InputError(f"the collection has no {labels}; it has {' and '.join(available)}")
    wanted = labels or ("qrels" if chunker == "none" else "evidence")
    return wanted if wanted in available else available[0]


def select_queries(collection, labels, split=None):
    """Return the queries of a split (all without one), by id.

    Raises
    ------
    InputError
        If the collection does not have the split.
    """
    if split is None:
        return dict(collection.queries)
    if labels == "qrels" and split in collection.qrels:
        chosen = {query_id: collection.queries[query_id] for query_id in collection.qrels[split]}
        # Unanswerable queries may have no row in the file, and belong to their split all the same.
        flagged = {
            q.id: q for q in collection.queries.values() if q.metadata.get("split") == split and is_unanswerable(q)
        }
        return chosen | flagged
    chosen = {q.id: q for q in collection.queries.values() if q.metadata.get("split") == split}
    if labels == "qrels" or not chosen:
        raise InputError(f"the collection has no split {split!r}; it has {_splits(collection, labels)}")
    return chosen


def _splits(collection, labels):
    if labels == "qrels":
        names = set(collection.qrels)
    else:
        names = {q.metadata["split"] for q in collection.queries.values() if "split" in q.metadata}
    return ", ".join(sorted(names)) or "none"


def is_unanswerable(query):
    """Whether a query is flagged as having no answer in the corpus."""
    return query.metadata.get("answerable") is False


def collapse(hits):
    """Return document hits: each document at its best chunk's place."""
    documents = {}
    for hit in hits:
        doc_id = hit.id if hit.doc_id is None else hit.doc_id
        documents.setdefault(doc_id, Hit(doc_id, hit.score))
    return list(documents.values())


class RAGEvaluator:
    """Score retrievers on the queries of a collection.

    Parameters
    ----------
    collection : Collection
    chunks : sequence of Chunk
        Everything that the retrievers may return.
    metrics : sequence of str
        With evidence: ``recall@5`` (evidence view), ``precision@3``, ``ndcg@10``
        (chunk view), ``evidence_ndcg@10``, ``char_recall@2000chars`` and so on;
        with qrels: the names of `rag_lab.metrics`.
    split : str, optional
    labels : {"evidence", "qrels"}, optional
    rel_level : int
        The lowest grade that counts as relevant.
    tau : float
        Share of a span that must be covered.
    k : int, optional
        How many results to ask for; the largest cutoff by default.

    Examples
    --------
    >>> from rag_lab.chunking import chunk_documents
    >>> from rag_lab.collection import load_embedded
    >>> from rag_lab.retrieval import BM25Retriever
    >>> collection = load_embedded()
    >>> chunks = chunk_documents(collection.documents.values(), "fixed:512")
    >>> evaluator = RAGEvaluator(collection, chunks, split="dev")
    >>> list(evaluator.evaluate(BM25Retriever(chunks)).columns)
    ['recall@5', 'precision@3', 'ndcg@10']
    """

    def __init__(
        self, collection, chunks, metrics=DEFAULT_METRICS, split=None, labels=None, rel_level=1, tau=TAU, k=None
    ):
        check_tau(tau)
        self.collection, self.chunks, self.metrics = collection, list(chunks), list(metrics)
        self.rel_level, self.tau = rel_level, tau
        self.labels = choose_labels(collection, labels)
        self.queries = select_queries(collection, self.labels, split)
        self.k = _results_needed(self.metrics, self.labels, k, len(self.chunks))
        if self.labels == "evidence":
            labelled = collection.spans_by_query()
            self.spans = {query_id: labelled[query_id] for query_id in self.queries if query_id in labelled}
            self.qrels = chunk_qrels(self.spans, self.chunks, tau, read=collection.all_qrels())
        else:
            labelled = collection.qrels[split] if split else collection.all_qrels()
            self.qrels = {query_id: labelled[query_id] for query_id in self.queries if query_id in labelled}
        self.unanswerable = [
            query.id
            for query in self.queries.values()
            if is_unanswerable(query) and max(self.qrels.get(query.id, {}).values(), default=0) <= 0
        ]
        self.counted = [
            query_id for query_id in self.queries if query_id in self.qrels and query_id not in self.unanswerable
        ]
        if not self.counted:
            raise InputError("no query has labels; expected at least one labelled query in the chosen split")

    def search(self, retriever):
        """Return ``{query_id: [Hit, …]}`` for all queries of the split."""
        texts = {query_id: query.text for query_id, query in self.queries.items()}
        if self.labels == "evidence":
            return search_many(retriever, texts, self.k)
        # A document may fill many places with its chunks before it is collapsed to one.
        counts = {}
        for chunk in self.chunks:
            counts[chunk.doc_id] = counts.get(chunk.doc_id, 0) + 1
        deep = min(self.k * max(counts.values(), default=1), max(len(self.chunks), 1))
        results = search_many(retriever, texts, deep)
        return {query_id: collapse(hits)[: self.k] for query_id, hits in results.items()}

    def score(self, results):
        """Score ``{query_id: [Hit, …]}`` and return an `Evaluation`."""
        run = {query_id: [(hit.id, hit.score) for hit in results.get(query_id, ())] for query_id in self.counted}
        qrels = {query_id: self.qrels[query_id] for query_id in self.counted}
        names = self._ranking_metrics()
        ranked = evaluate(qrels, run, list(names.values()), self.rel_level)
        per_query = {}
        for query_id in self.counted:
            ranking = results.get(query_id, [])
            per_query[query_id] = {
                name: ranked.per_query[query_id][names[name]]
                if name in names
                else self._on_spans(name, query_id, ranking)
                for name in self.metrics
            }
        counts = {
            **ranked.queries,
            "unanswerable": len(self.unanswerable),
            "ignored": len(self.queries) - len(self.counted) - len(self.unanswerable),
        }
        silent = [query_id for query_id in self.unanswerable if not results.get(query_id)]
        abstention = len(silent) / len(self.unanswerable) if self.unanswerable else None
        return Evaluation(average(per_query, self.metrics), per_query, counts, ranked.no_relevant, abstention)

    def evaluate(self, retriever):
        """Search and score: a DataFrame with a row a query and a column a metric."""
        return as_frame(self.score(self.search(retriever)), self.metrics)

    def _ranking_metrics(self):
        """Return ``{name: name in rag_lab.metrics}`` for the metrics on judged chunks or documents."""
        if self.labels == "qrels":
            return {name: name for name in self.metrics}
        names = {}
        for name in self.metrics:
            rule, cutoff, _ = parse_evidence_metric(name)
            if rule in CHUNK_RULES:
                names[name] = CHUNK_RULES[rule] + ("" if cutoff is None else f"@{cutoff}")
        return names

    def _on_spans(self, name, query_id, ranking):
        rule, cutoff, unit = parse_evidence_metric(name)
        spans = self.spans[query_id]
        if rule == "evidence_ndcg":
            return evidence_ndcg_at_k(spans, ranking, cutoff, self.tau)
        if unit == "chars":
            passages = within_budget(ranking, cutoff)
            ranking = [Hit("", 0.0, *passage) for passage in passages]
        else:
            passages = [(hit.doc_id, hit.start, hit.end) for hit in ranking[:cutoff]]
        if rule == "recall":
            return evidence_recall_at_k(spans, ranking, None if unit == "chars" else cutoff, self.rel_level, self.tau)
        return READING_RULES[rule](spans, passages, self.rel_level)


def as_frame(evaluation, metrics):
    """Return the per-query values of an `Evaluation` as a DataFrame."""
    frame = pd.DataFrame.from_dict(evaluation.per_query, orient="index", columns=list(metrics), dtype=float)
    return frame.rename_axis("query_id")


def _results_needed(metrics, labels, k, number_of_chunks):
    """Return how many results the metrics look at."""
    if labels == "qrels":
        cutoffs = [parse_metric(name)[1] for name in metrics]
    else:
        parsed = [parse_evidence_metric(name) for name in metrics]
        # How many chunks fill a budget is not known beforehand.
        cutoffs = [cutoff if unit == "chunks" else None for _, cutoff, unit in parsed]
    if k is not None:
        check_cutoff(k, "k")
        largest = max((cutoff for cutoff in cutoffs if cutoff), default=1)
        if k < largest:
            raise OptionError(f"k is {k}, but a metric has cutoff {largest}; expected k ≥ {largest}")
        return k
    return max(number_of_chunks, 1) if None in cutoffs or not cutoffs else max(cutoffs)
