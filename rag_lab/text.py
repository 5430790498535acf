"""From text to terms, for Latin and Chinese, Japanese or Korean scripts.

The analyser has no dictionary and no dependency. Words of alphabetic scripts
are runs of letters, digits and combining marks. Chinese and Japanese write no
spaces, so a run of their characters becomes its overlapping pairs (bigrams):
``屋顶漏水`` gives ``屋顶 顶漏 漏水``, and a query for ``漏水`` finds it.
"""

import functools
import re
import unicodedata

# Ideographs (with extensions), kana, bopomofo and Hangul.
CJK = (
    "\u2e80-\u2fdf\u3005-\u3007\u3021-\u3029\u3040-\u309f\u30a1-\u30ff\u3100-\u312f"
    "\u3130-\u318f\u31a0-\u31bf\u31f0-\u31ff\u3400-\u4dbf\u4e00-\u9fff\uac00-\ud7af"
    "\uf900-\ufaff\U0001b000-\U0001b16f\U00020000-\U0003347f"
)


@functools.cache
def _pattern():
    """Compile ``(CJK run) | (word)``; a word may hold combining marks."""
    marks = "".join(
        character for character in map(chr, range(0x300, 0x20000)) if unicodedata.category(character).startswith("M")
    )
    word = f"(?:(?![{CJK}_])[\\w{marks}])+"
    return re.compile(f"([{CJK}]+)|({word})")


def normalize(text):
    """Return `text` in the form in which terms are compared.

    NFKC makes ``é`` one character however it was typed and turns full-width
    letters into plain ones; case folding removes case. Folding can undo the
    composition, hence the second NFKC.
    """
    folded = unicodedata.normalize("NFKC", text).casefold()
    return unicodedata.normalize("NFKC", folded)


def tokenize(text):
    """Return the terms of a document.

    Parameters
    ----------
    text : str
        Any text.

    Returns
    -------
    list of str
        Words in their order; for a run of CJK characters every character and
        every pair of neighbours, so that ``门`` finds ``门锁`` too.

    Examples
    --------
    >>> tokenize("Café R7: 门锁")
    ['café', 'r7', '门', '锁', '门锁']
    """
    terms = []
    for run, word in _pattern().findall(normalize(text)):
        if word:
            terms.append(word)
        else:
            terms.extend(run)
            terms.extend(_pairs(run))
    return terms


def tokenize_query(text):
    """Return the terms of a query.

    As `tokenize`, but a run of two or more CJK characters gives its pairs
    alone: single characters match nearly everything and would drown them.

    Examples
    --------
    >>> tokenize_query("门锁")
    ['门锁']
    """
    terms = []
    for run, word in _pattern().findall(normalize(text)):
        terms.extend([word] if word else _pairs(run) or [run])
    return terms


def _pairs(run):
    return [run[i : i + 2] for i in range(len(run) - 1)]
