"""Cut documents into chunks whose offsets are exact.

A chunker is named by a specification: ``none`` (the whole document),
``fixed:512``, ``fixed:512:64`` (with overlap), ``sentence:512``,
``recursive:512``, ``adaptive``, or several joined by ``+`` for an index that
holds more than one size. Sizes are code points.

Every chunk is a slice of its document, ``text[start:end]``; no grapheme
cluster (a letter with its accents, an emoji with its modifiers) is cut; the
chunks cover every character that is not white space.
"""

import bisect
from dataclasses import dataclass
from itertools import pairwise

import regex

from rag_lab.errors import OptionError

METHODS = ("none", "fixed", "sentence", "recursive", "adaptive")
ADAPTIVE_SIZES = {"technical": 256, "narrative": 768}

# A sentence ends after its stop and closing marks, or at a line break. A Latin
# stop needs white space behind it (3.5, tern.yaml), a Chinese one does not.
SENTENCE_END = regex.compile(r"[.!?…]+[\"'”’)\]]*(?=\s)|[。！？]+[”’」』）]*|\n+")

# From coarse to fine: paragraphs, lines, sentences, clauses, words.
SEPARATORS = [
    regex.compile(pattern)
    for pattern in (
        r"\n\s*\n",
        r"\n",
        r"[.!?…]+[\"'”’)\]]*(?=\s)|[。！？]+[”’」』）]*",
        r"[,;:](?=\s)|[，；：、]",
        r"\s+",
    )
]


@dataclass(frozen=True)
class Chunk:
    """A piece ``text`` = ``document.text[start:end]`` of a document."""

    doc_id: str
    start: int
    end: int
    text: str

    @property
    def id(self):
        return f"{self.doc_id}:{self.start}:{self.end}"


def chunk_documents(documents, spec):
    """Cut documents into chunks.

    Parameters
    ----------
    documents : iterable of Document
    spec : str
        Such as ``"fixed:512"``; see the module's text.

    Returns
    -------
    list of Chunk
        Document by document, each in the order of the text.

    Raises
    ------
    OptionError
        For an unknown chunker or an impossible size.
    """
    parts = check_spec(spec)
    return [
        Chunk(document.id, start, end, document.text[start:end])
        for document in documents
        for start, end in _spans(document.text, parts)
    ]


def chunk_spans(text, spec):
    """Return the (start, end) pairs of the chunks of one text, sorted, without duplicates.

    Examples
    --------
    >>> chunk_spans("tick tock tick", "recursive:4")
    [(0, 4), (5, 9), (10, 14)]
    """
    return _spans(text, check_spec(spec))


def check_spec(spec):
    """Return the parsed parts ``[(method, size, overlap), …]`` of a specification."""
    if not isinstance(spec, str):
        raise OptionError(f"chunker is {spec!r}; expected a string such as 'fixed:512'")
    return [_check_part(part, spec) for part in spec.split("+")]


def _check_part(part, spec):
    expected = "expected none, fixed:SIZE[:OVERLAP], sentence:SIZE, recursive:SIZE or adaptive, joined by +"
    method, *numbers = part.split(":")
    allowed = {"none": 0, "adaptive": 0, "sentence": 1, "recursive": 1, "fixed": 2}.get(method, -1)
    if len(numbers) > allowed or (allowed > 0 and not numbers):
        raise OptionError(f"chunker {spec!r}: {part!r} is not a chunker; {expected}")
    if not all(number.isascii() and number.isdigit() and len(number) < 10 for number in numbers):
        raise OptionError(f"chunker {spec!r}: {part!r} has a size that is no whole number; {expected}")
    size, overlap = [*map(int, numbers), 0, 0][:2]
    if allowed > 0 and size < 1:
        raise OptionError(f"chunker {spec!r}: size is {size}; expected at least 1")
    if overlap and overlap >= size:
        raise OptionError(
            f"chunker {spec!r}: overlap {overlap} is not below the size {size}; expected 0 ≤ overlap < size"
        )
    return method, size, overlap


def _spans(text, parts):
    spans = set()
    for method, size, overlap in parts:
        spans.update(_method_spans(text, method, size, overlap))
    return sorted(spans)


def _method_spans(text, method, size, overlap):
    if method == "none":
        return [(0, len(text))]
    if method == "adaptive":
        method, size = "recursive", ADAPTIVE_SIZES[document_kind(text)]
    if method == "fixed":
        return [span for span in _fixed(text, size, overlap) if text[slice(*span)].strip()]
    starts = cluster_starts(text)
    allowed = None if starts is None else frozenset(starts)
    if method == "sentence":
        return _pack(_sentences(text, size, allowed), size)
    return _recursive(text, 0, len(text), size, SEPARATORS, allowed)


def cluster_starts(text):
    """Return the offsets at which `text` may be cut, or None if it may be cut anywhere."""
    if text.isascii() and "\r\n" not in text:
        return None
    return [match.start() for match in regex.finditer(r"\X", text)] + [len(text)]


def _cut_before(starts, position):
    """The last allowed cut at or before `position`."""
    return position if starts is None else starts[bisect.bisect_right(starts, position) - 1]


def _cut_after(starts, position):
    """The first allowed cut at or after `position`."""
    return position if starts is None else starts[bisect.bisect_left(starts, position)]


def _fixed(text, size, overlap=0):
    """Windows of `size` at multiples of the step, moved back to keep a cluster whole."""
    starts = cluster_starts(text)
    spans, last_start, last_end = [], -1, 0
    for nominal in range(0, len(text), size - overlap):
        start = _cut_before(starts, nominal)
        if start <= last_start:  # a long cluster: two windows would begin with it
            start = _cut_after(starts, last_start + 1)
        end = _cut_before(starts, min(nominal + size, len(text)))
        if end <= start:  # a cluster longer than the window stays whole
            end = _cut_after(starts, start + 1)
        if end > last_end:
            spans.append((start, end))
            last_start, last_end = start, end
        if last_end == len(text):
            break
    return spans


def _sentences(text, size, allowed):
    """Sentences without surrounding white space; longer ones than `size` cut at clauses or words."""
    for start, end in _split(text, 0, len(text), SENTENCE_END, allowed):
        start, end = _trim(text, start, end, allowed)
        if end - start > size:
            yield from _recursive(text, start, end, size, SEPARATORS[3:], allowed)
        elif end > start:
            yield start, end


def _split(text, start, end, separator, allowed):
    """Cut text[start:end] behind every separator."""
    ends = [match.end() for match in separator.finditer(text, start, end)]
    cuts = [start, *(cut for cut in ends if allowed is None or cut in allowed), end]
    return pairwise(cuts)


def _pieces(text, start, end, size, allowed):
    for piece_start, piece_end in _fixed(text[start:end], size):
        piece = _trim(text, start + piece_start, start + piece_end, allowed)
        if piece[0] < piece[1]:
            yield piece


def _pack(spans, size):
    """Join neighbours as long as the whole stays within `size`."""
    packed = []
    for start, end in spans:
        if packed and end - packed[-1][0] <= size:
            packed[-1] = (packed[-1][0], end)
        else:
            packed.append((start, end))
    return packed


def _recursive(text, start, end, size, separators, allowed):
    """Split at the coarsest separator, split what is too long at the next, join neighbours."""
    start, end = _trim(text, start, end, allowed)
    if end - start <= size:
        return [(start, end)] if end > start else []
    if not separators:
        return list(_pieces(text, start, end, size, allowed))
    pieces = []
    for left, right in _split(text, start, end, separators[0], allowed):
        pieces += _recursive(text, left, right, size, separators[1:], allowed)
    return _pack(pieces, size)


def _trim(text, start, end, allowed):
    """Move both ends inwards over white space, but not into a grapheme cluster."""
    while start < end and text[start].isspace() and (allowed is None or start + 1 in allowed):
        start += 1
    while end > start and text[end - 1].isspace() and (allowed is None or end - 1 in allowed):
        end -= 1
    return start, end


def document_kind(text):
    """Return ``"technical"`` or ``"narrative"``, judged by the shape of the text.

    Technical text comes in tables, lists, headings and code: lines that carry
    structure, or terms with digits, underscores and dots inside. It is called
    technical when half of its characters stand in such lines, or when more than
    one word in twelve is an identifier or a number.
    """
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    total = sum(map(len, lines))
    if not total:
        return "narrative"
    structured = sum(len(line) for line in lines if STRUCTURE.match(line))
    words = text.split()
    identifiers = sum(bool(IDENTIFIER.search(word)) for word in words)
    return "technical" if structured > total / 2 or identifiers > len(words) / 12 else "narrative"


STRUCTURE = regex.compile(r"[|#>`]|[-*+] |\d+[.)] |\w[\w.-]*: ?\S*$")
IDENTIFIER = regex.compile(r"\d|\w_\w|\w\.\w|`|[a-z][A-Z]")
