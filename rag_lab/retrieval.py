"""Retrievers: BM25, dense, hybrid, two-stage, and a threshold on any of them.

A retriever is anything with ``search(query, k)`` that returns a list of `Hit`,
best first. A plain function that returns ids or (id, score) pairs will do as
well (`as_hits`).

An index is a list of chunks. Filters apply before the cut to k; equal scores
are ordered by id, descending, as the metrics do.
"""

from dataclasses import dataclass, replace

import numpy as np

from rag_lab.errors import InputError, OptionError
from rag_lab.fusion import NORMALIZERS, convex, reciprocal_rank_fusion
from rag_lab.metrics import check_cutoff, is_integer, score_pairs
from rag_lab.models import progress, sigmoid
from rag_lab.text import tokenize, tokenize_query

FUSION_DEPTH = 100
SCORE_DECIMALS = 10


@dataclass(frozen=True)
class Hit:
    """One result: an id and a score, and where the passage lies, if it is a chunk."""

    id: str
    score: float
    doc_id: str | None = None
    start: int | None = None
    end: int | None = None


class _Index:
    """What both exact retrievers share: chunks, filters, and the cut to k."""

    def __init__(self, chunks, texts=None, metadata=None):
        """Take chunks, the texts to index (the chunks' own by default), and metadata by document id."""
        self.chunks = list(chunks)
        self.texts = [chunk.text for chunk in self.chunks] if texts is None else list(texts)
        if len(self.texts) != len(self.chunks):
            raise InputError(f"{len(self.texts)} texts for {len(self.chunks)} chunks; expected one each")
        ids = [chunk.id for chunk in self.chunks]
        if len(set(ids)) != len(ids):
            raise InputError("chunks share an id; expected every chunk once")
        self.metadata = metadata or {}
        # Position of each id in descending order, to break ties.
        self.id_order = np.empty(len(ids), dtype=np.int64)
        self.id_order[sorted(range(len(ids)), key=ids.__getitem__, reverse=True)] = np.arange(len(ids))

    def _allowed(self, where):
        """Mask of the chunks whose document has the wanted metadata."""
        if not where:
            return np.ones(len(self.chunks), dtype=bool)
        wanted = {name: value if isinstance(value, (list, tuple, set)) else [value] for name, value in where.items()}
        documents = {
            chunk.doc_id: all(self.metadata.get(chunk.doc_id, {}).get(n) in v for n, v in wanted.items())
            for chunk in self.chunks
        }
        return np.array([documents[chunk.doc_id] for chunk in self.chunks], dtype=bool)

    def _top(self, scores, allowed, k):
        """The k best of the allowed chunks as hits."""
        candidates = np.flatnonzero(allowed)
        if len(candidates) > k:
            lowest = np.partition(scores[candidates], len(candidates) - k)[len(candidates) - k]
            candidates = candidates[scores[candidates] >= lowest]
        best = candidates[np.lexsort((self.id_order[candidates], -scores[candidates]))][:k]
        return [self._hit(position, scores[position]) for position in best]

    def _hit(self, position, score):
        chunk = self.chunks[position]
        return Hit(chunk.id, float(score), chunk.doc_id, chunk.start, chunk.end)


class BM25Retriever(_Index):
    """BM25 in Lucene's form, on `bm25s`.

    ``score = Σ idf(t) · tf / (tf + k1 · (1 − b + b · length / average length))`` over
    the query's terms, with ``idf = log(1 + (N − n + 0.5) / (n + 0.5))``, which is
    always above 0. A chunk without any query term is not a result.

    Parameters
    ----------
    chunks : sequence of Chunk
    texts : sequence of str, optional
        What to index instead of the chunks' own texts, e.g. with a title.
    metadata : mapping, optional
        ``{doc_id: metadata}`` for filters.
    k1, b : float
        Saturation of term frequency (≥ 0) and strength of length normalisation ([0, 1]).

    References
    ----------
    Robertson & Zaragoza (2009), "The probabilistic relevance framework: BM25 and beyond".
    """

    def __init__(self, chunks, texts=None, metadata=None, k1=1.2, b=0.75):
        super().__init__(chunks, texts, metadata)
        import bm25s

        if k1 < 0 or not 0 <= b <= 1:
            raise OptionError(f"k1 is {k1}, b is {b}; expected k1 ≥ 0 and 0 ≤ b ≤ 1")
        terms = [tokenize(text) for text in self.texts]
        self.model = None
        if any(terms):  # bm25s cannot index nothing
            self.model = bm25s.BM25(method="lucene", k1=k1, b=b, dtype="float64")
            self.model.index(terms, show_progress=False)

    def search(self, query, k, where=None):
        """Return at most k hits whose score is above 0."""
        check_cutoff(k, "k")
        terms = [term for term in tokenize_query(query) if self.model and term in self.model.vocab_dict]
        if not terms:
            return []
        scores = self.model.get_scores(terms)
        return self._top(scores, self._allowed(where) & (scores > 0), k)


class DenseRetriever(_Index):
    """Exact search by cosine similarity of embeddings.

    Parameters
    ----------
    chunks, texts, metadata
        As in `BM25Retriever`.
    encoder : Encoder
    """

    def __init__(self, chunks, encoder, texts=None, metadata=None):
        super().__init__(chunks, texts, metadata)
        self.encoder = encoder
        self.with_text = np.array([bool(text.strip()) for text in self.texts], dtype=bool)
        # float64, and scores rounded below: equal texts then score equal wherever they stand.
        self.vectors = encoder.encode(self.texts).astype(np.float64)

    def search(self, query, k, where=None):
        """Return the k most similar chunks; none for a query without any text."""
        check_cutoff(k, "k")
        if not query.strip() or not self.chunks:
            return []
        scores = np.round(self.vectors @ self.encoder.encode([query])[0].astype(np.float64), SCORE_DECIMALS)
        return self._top(scores, self._allowed(where) & self.with_text, k)

    def prepare(self, queries):
        """Encode many queries in one go, so that single searches find them in the cache."""
        self.encoder.encode(queries)


class HybridRetriever:
    """Fuse the candidates of a dense and a sparse retriever.

    Parameters
    ----------
    dense, sparse : retrievers
        Asked for ``max(depth, k)`` candidates each.
    alpha : float
        Weight of the dense leg, in [0, 1]; not used by "rrf".
    method : {"minmax", "zscore", "raw", "rrf"}
    depth : int
        Candidates of each leg.
    """

    def __init__(self, dense, sparse, alpha=0.5, method="minmax", depth=FUSION_DEPTH):
        if not 0 <= alpha <= 1:
            raise OptionError(f"alpha is {alpha!r}; expected 0 ≤ alpha ≤ 1")
        if method != "rrf" and method not in NORMALIZERS:
            raise OptionError(f"method is {method!r}; expected one of {', '.join(NORMALIZERS)}, rrf")
        check_cutoff(depth, "depth")
        self.dense, self.sparse, self.alpha, self.method, self.depth = dense, sparse, alpha, method, depth

    def search(self, query, k, where=None):
        """Return the k best of the fused candidates."""
        check_cutoff(k, "k")
        depth = max(self.depth, k)
        legs = [search_hits(leg, query, depth, where) for leg in (self.dense, self.sparse)]
        if self.method == "rrf":
            fused = reciprocal_rank_fusion([[hit.id for hit in leg] for leg in legs])
        else:
            lists = [{hit.id: hit.score for hit in leg} for leg in legs]
            fused = convex(lists, (self.alpha, 1 - self.alpha), self.method)
        by_id = {hit.id: hit for leg in legs for hit in leg}
        return sort_hits(replace(by_id[key], score=score) for key, score in fused.items())[:k]

    def prepare(self, queries):
        """Prepare both legs for many queries."""
        prepare(self.dense, queries)
        prepare(self.sparse, queries)


class TwoStageRetriever:
    """Take the candidates of a retriever, order them anew by a cross-encoder.

    Parameters
    ----------
    retriever : retriever
    reranker : Reranker
    texts : mapping of str to str
        Text of every chunk, by id.
    depth : int
        Candidates to score; no search returns more than so many.
    threshold : float, optional
        Drop hits whose probability (sigmoid of the logit) is below it.
    """

    def __init__(self, retriever, reranker, texts, depth=20, threshold=None):
        check_cutoff(depth, "depth")
        if threshold is not None and not 0 <= threshold <= 1:
            raise OptionError(f"threshold is {threshold!r}; expected 0 ≤ threshold ≤ 1")
        self.retriever, self.reranker, self.texts = retriever, reranker, texts
        self.depth, self.threshold = depth, threshold

    def search(self, query, k, where=None):
        """Return the k best candidates by the reranker; scores are logits."""
        check_cutoff(k, "k")
        hits = search_hits(self.retriever, query, self.depth, where)
        logits = self.reranker.score([(query, self.texts[hit.id]) for hit in hits])
        scored = [replace(hit, score=logit) for hit, logit in zip(hits, logits, strict=True)]
        if self.threshold is not None:
            scored = [hit for hit in scored if sigmoid(hit.score) >= self.threshold]
        return sort_hits(scored)[:k]

    def prepare(self, queries):
        """Score the candidates of many queries in one go, for the cache."""
        prepare(self.retriever, queries)
        self.reranker.score(
            [(query, self.texts[hit.id]) for query in queries for hit in search_hits(self.retriever, query, self.depth)]
        )


class ThresholdRetriever:
    """Drop the hits of a retriever whose score is below a threshold."""

    def __init__(self, retriever, threshold):
        self.retriever, self.threshold = retriever, threshold

    def search(self, query, k, where=None):
        """Return at most k hits with a score of at least the threshold."""
        return [hit for hit in search_hits(self.retriever, query, k, where) if hit.score >= self.threshold]

    def prepare(self, queries):
        """Prepare the retriever for many queries."""
        prepare(self.retriever, queries)


def sort_hits(hits):
    """Order hits by score descending, equal scores by id descending."""
    return sorted(sorted(hits, key=lambda hit: hit.id, reverse=True), key=lambda hit: -hit.score)


def prepare(retriever, queries):
    """Let a retriever do in one go what many searches would do one by one."""
    if hasattr(retriever, "prepare"):
        retriever.prepare(queries)


def search_hits(retriever, query, k, where=None):
    """Search any retriever or plain function and return checked hits, at most k."""
    search = getattr(retriever, "search", retriever)
    results = search(query, k, where=where) if where else search(query, k)
    return as_hits(results, query)[:k]


def as_hits(results, query):
    """Return results as a list of `Hit`: hits, (id, score) pairs, or ids, best first.

    Raises
    ------
    InputError
        For duplicate ids, scores that are no finite numbers, or anything else.
    """
    results = list(results)
    if all(isinstance(result, Hit) for result in results):
        score_pairs([(hit.id, hit.score) for hit in results], query)
        return results
    return [_parse_hit(key, score) for key, score in score_pairs(results, query)]


def _parse_hit(key, score):
    """A chunk's id is ``doc_id:start:end``; any other id is taken as it is."""
    doc_id, *place = key.rsplit(":", 2)
    if len(place) == 2 and all(part.isascii() and part.isdigit() for part in place):
        return Hit(key, score, doc_id, int(place[0]), int(place[1]))
    return Hit(key, score)


def search_many(retriever, queries, k):
    """Search for many queries.

    Parameters
    ----------
    retriever : retriever or callable
    queries : mapping of str to str
        Texts by query id.
    k : int

    Returns
    -------
    dict
        ``{query_id: [Hit, …]}``, best first.
    """
    if not is_integer(k) or k < 1:
        raise OptionError(f"k is {k!r}; expected an integer ≥ 1")
    prepare(retriever, list(queries.values()))
    results = {}
    with progress(len(queries), "Searching") as bar:
        for query_id, text in queries.items():
            results[query_id] = search_hits(retriever, text, k)
            bar.update(1)
    return results
