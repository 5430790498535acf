"""How sure are we: intervals, paired tests, and how many queries are enough.

The sample is the set of queries. Two systems are compared query by query,
because the difficulty of the queries varies far more than the systems do.
"""

import math

import numpy as np
from scipy.stats import norm

from rag_lab.errors import InputError, OptionError
from rag_lab.metrics import check_cutoff

RESAMPLES = 10_000
BLOCK = 1_000


def _check_values(values, name):
    values = np.asarray(values, dtype=np.float64)
    if values.ndim != 1 or len(values) == 0 or not np.isfinite(values).all():
        raise InputError(f"{name} has shape {values.shape}; expected at least one finite number, in one dimension")
    return values


def _check_share(value, name):
    if not 0 < value < 1:
        raise OptionError(f"{name} is {value!r}; expected a number between 0 and 1")


def bootstrap_interval(values, level=0.95, resamples=RESAMPLES, seed=0):
    """Return a percentile bootstrap interval of the mean.

    Parameters
    ----------
    values : array_like, shape (n,)
        One value a query.
    level : float
        Share of intervals that cover the true mean, in (0, 1).
    resamples : int
    seed : int
        Same input and seed, same interval.

    Returns
    -------
    (float, float)

    References
    ----------
    Efron & Tibshirani (1993), "An introduction to the bootstrap", chapter 13.
    """
    values = _check_values(values, "values")
    _check_share(level, "level")
    check_cutoff(resamples, "resamples")
    generator = np.random.default_rng(seed)
    means = np.concatenate(
        [values[generator.integers(len(values), size=(size, len(values)))].mean(axis=1) for size in _blocks(resamples)]
    )
    low, high = np.quantile(means, [(1 - level) / 2, (1 + level) / 2])
    return float(low), float(high)


def randomisation_test(a, b, resamples=RESAMPLES, seed=0):
    """Return the two-sided p-value of a paired randomisation test of equal means.

    If the systems were equal, each query's two values could be swapped. The
    p-value is the share of random swaps whose mean difference is at least as
    large as the observed one; the observed one counts too, so p is never 0.

    Parameters
    ----------
    a, b : array_like, shape (n,)
        Values of two systems on the same queries, in the same order.

    References
    ----------
    Smucker, Allan & Carterette (2007), "A comparison of statistical significance
    tests for information retrieval evaluation", CIKM; Phipson & Smyth (2010),
    "Permutation p-values should never be zero".
    """
    a, b = _check_values(a, "a"), _check_values(b, "b")
    if len(a) != len(b):
        raise InputError(f"a has {len(a)} values and b has {len(b)}; expected one pair a query")
    check_cutoff(resamples, "resamples")
    differences = a - b
    observed = abs(differences.sum())
    # Sums of the same numbers in another order differ in the last digits.
    threshold = observed - 1e-9 * np.abs(differences).sum()
    generator = np.random.default_rng(seed)
    extreme = 0
    for size in _blocks(resamples):
        signs = generator.integers(2, size=(size, len(differences))) * 2 - 1
        extreme += int((np.abs(signs @ differences) >= threshold).sum())
    return (extreme + 1) / (resamples + 1)


def _blocks(resamples):
    """Split the work so that memory stays bounded."""
    for start in range(0, resamples, BLOCK):
        yield min(BLOCK, resamples - start)


def holm(p_values):
    """Correct p-values for the number of tests (Holm 1979): the family's error stays below α.

    Parameters
    ----------
    p_values : sequence of float
        Each in [0, 1].

    Returns
    -------
    list of float
        Corrected values in the given order, at most 1.

    Examples
    --------
    >>> holm([0.01, 0.04, 0.03])
    [0.03, 0.06, 0.06]
    """
    if not all(0 <= p <= 1 for p in p_values):
        raise InputError(f"p-values are {list(p_values)}; expected numbers in [0, 1]")
    corrected, largest = [0.0] * len(p_values), 0.0
    for place, index in enumerate(sorted(range(len(p_values)), key=lambda i: p_values[i])):
        largest = max(largest, min(1.0, (len(p_values) - place) * p_values[index]))
        corrected[index] = largest
    return corrected


def minimum_detectable_effect(deviation, n, alpha=0.05, power=0.8):
    """Return the mean difference that a paired test on `n` queries detects with the given power.

    Parameters
    ----------
    deviation : float
        Standard deviation of the per-query differences (≥ 0).
    n : int
        Number of queries.
    alpha, power : float
        Two-sided error level, and the chance to detect a true difference of the returned size.

    Notes
    -----
    ``(z(1 − α/2) + z(power)) · deviation / √n``, the normal approximation.
    """
    check_cutoff(n, "n")
    return _quantiles(deviation, alpha, power) * deviation / math.sqrt(n)


def required_queries(deviation, effect, alpha=0.05, power=0.8):
    """Return how many queries a paired test needs to detect a mean difference of `effect`."""
    if not effect > 0:
        raise OptionError(f"effect is {effect!r}; expected a number above 0")
    return max(1, math.ceil((_quantiles(deviation, alpha, power) * deviation / effect) ** 2))


def _quantiles(deviation, alpha, power):
    _check_share(alpha, "alpha")
    _check_share(power, "power")
    if not (deviation >= 0 and math.isfinite(deviation)):
        raise InputError(f"deviation is {deviation!r}; expected a finite number ≥ 0")
    return norm.ppf(1 - alpha / 2) + norm.ppf(power)
