"""From evidence spans to labels that survive re-chunking.

Ground truth is a set of graded spans in documents, never a set of chunk ids.
Three views of one retrieval result follow from it, with τ = 0.5 by default:

chunk view
    A chunk carries a span's grade if they overlap by at least τ of the shorter
    of the two. This gives ordinary judgements for any ranking metric, but other
    ones for every chunker.
evidence view
    A span is found at k if the union of the first k chunks covers at least τ of
    it. The denominator is the same for every chunker.
reading view
    Characters of evidence among the characters read, counted as unions, at k
    chunks or at an equal budget of characters.

Spans and chunks are anything with ``doc_id``, ``start`` and ``end``.
"""

from rag_lab.errors import OptionError
from rag_lab.gain import dcg

TAU = 0.5


def overlap(one, other):
    """Return the number of characters that two passages share."""
    if one.doc_id != other.doc_id:
        return 0
    return max(0, min(one.end, other.end) - max(one.start, other.start))


def carries(chunk, span, tau=TAU):
    """Whether a chunk carries a span: overlap ≥ τ · min(len(span), len(chunk))."""
    shared = overlap(chunk, span)
    return shared > 0 and shared >= tau * min(span.end - span.start, chunk.end - chunk.start)


def check_tau(tau):
    """Raise OptionError unless 0 < τ ≤ 1."""
    if not 0 < tau <= 1:
        raise OptionError(f"tau is {tau!r}; expected 0 < tau ≤ 1")


def chunk_qrels(spans_by_query, chunks, tau=TAU, read=None):
    """Turn spans into judgements of chunks (the chunk view).

    Parameters
    ----------
    spans_by_query : dict of str to list of Span
    chunks : iterable of Chunk
    tau : float
        In (0, 1].
    read : mapping of str to iterable of str, optional
        Documents read whole for each query: their chunks are judged, with 0
        where they carry no span.

    Returns
    -------
    dict
        ``{query_id: {chunk_id: grade}}``; a chunk has the largest grade it carries.
    """
    check_tau(tau)
    by_document = {}
    for chunk in chunks:
        by_document.setdefault(chunk.doc_id, []).append(chunk)
    qrels = {}
    for query_id, spans in spans_by_query.items():
        grades = qrels.setdefault(query_id, {})
        for doc_id in (read or {}).get(query_id, ()):
            grades.update((chunk.id, 0) for chunk in by_document.get(doc_id, ()))
        for span in spans:
            for chunk in by_document.get(span.doc_id, ()):
                if carries(chunk, span, tau):
                    grades[chunk.id] = max(span.grade, grades.get(chunk.id, 0))
    return qrels


def first_found(spans, ranking, tau=TAU):
    """Return the rank at which each span is first found, None if it is not.

    Parameters
    ----------
    spans : list of Span
        Evidence of one query.
    ranking : sequence of Chunk or Hit
        Best first.
    tau : float
        Share of a span that the union of the chunks must cover.
    """
    check_tau(tau)
    return [_rank_found(span, ranking, tau) for span in spans]


def _rank_found(span, ranking, tau):
    needed = tau * (span.end - span.start)
    pieces = []
    for rank, chunk in enumerate(ranking, start=1):
        if overlap(chunk, span):
            pieces.append((max(chunk.start, span.start), min(chunk.end, span.end)))
            if length(union(pieces)) >= needed:
                return rank
    return None


def evidence_recall_at_k(spans, ranking, k=None, rel_level=1, tau=TAU):
    """Share of the spans with grade ≥ `rel_level` that are found in the first k chunks.

    The denominator does not depend on the chunker. 0.0 without such spans.
    """
    wanted = [span for span in spans if span.grade >= rel_level]
    found = sum(rank is not None for rank in first_found(wanted, ranking[:k], tau))
    return found / len(wanted) if wanted else 0.0


def evidence_ndcg_at_k(spans, ranking, k=None, tau=TAU):
    """NDCG over spans: a rank gains the highest grade among the spans first found there.

    The ideal has the span grades in descending order, one a rank, cut at k.
    A span that comes twice, in overlapping chunks, is earned once.
    """
    ranks = first_found(spans, ranking[:k], tau)
    grades = [0] * len(ranking[:k])
    for span, rank in zip(spans, ranks, strict=True):
        if rank is not None:
            grades[rank - 1] = max(grades[rank - 1], span.grade)
    ideal = dcg(sorted((span.grade for span in spans), reverse=True), k)
    return dcg(grades) / ideal if ideal else 0.0


def within_budget(ranking, budget):
    """Return the (doc_id, start, end) passages read until `budget` characters are used up.

    Every chunk costs its length, also where it repeats text already read; the
    last one is cut.
    """
    passages, left = [], budget
    for chunk in ranking:
        if left <= 0:
            break
        taken = min(chunk.end - chunk.start, left)
        passages.append((chunk.doc_id, chunk.start, chunk.start + taken))
        left -= taken
    return passages


def reading(spans, passages, rel_level=1):
    """Return ``(evidence, read, shared)``: sizes in characters of unions.

    `passages` are (doc_id, start, end); `evidence` is the union of the spans
    with grade ≥ `rel_level`, `read` that of the passages, `shared` their
    intersection.
    """
    evidence = [(span.doc_id, span.start, span.end) for span in spans if span.grade >= rel_level]
    size_evidence, size_read = _size(evidence), _size(passages)
    return size_evidence, size_read, size_evidence + size_read - _size(evidence + passages)


def char_recall(spans, passages, rel_level=1):
    """Share of the evidence characters that were read."""
    evidence, _, shared = reading(spans, passages, rel_level)
    return shared / evidence if evidence else 0.0


def char_precision(spans, passages, rel_level=1):
    """Share of the characters read that are evidence."""
    _, read, shared = reading(spans, passages, rel_level)
    return shared / read if read else 0.0


def char_iou(spans, passages, rel_level=1):
    """Evidence characters read, divided by all characters that are evidence or were read."""
    evidence, read, shared = reading(spans, passages, rel_level)
    together = evidence + read - shared
    return shared / together if together else 0.0


def union(intervals):
    """Merge overlapping or touching (start, end) intervals; sorted."""
    merged = []
    for start, end in sorted(intervals):
        if merged and start <= merged[-1][1]:
            merged[-1] = (merged[-1][0], max(end, merged[-1][1]))
        else:
            merged.append((start, end))
    return merged


def length(intervals):
    """Total length of disjoint intervals."""
    return sum(end - start for start, end in intervals)


def _size(passages):
    by_document = {}
    for doc_id, start, end in passages:
        by_document.setdefault(doc_id, []).append((start, end))
    return sum(length(union(intervals)) for intervals in by_document.values())
