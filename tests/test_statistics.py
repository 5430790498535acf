"""Intervals and tests: worked values, exact enumeration, calibration."""

import itertools
import math

import numpy as np
import pytest

from rag_lab.errors import InputError, OptionError
from rag_lab.statistics import (
    bootstrap_interval,
    holm,
    minimum_detectable_effect,
    randomisation_test,
    required_queries,
)


def test_holm_by_hand():
    assert holm([0.01, 0.04, 0.03]) == pytest.approx([0.03, 0.06, 0.06])
    assert holm([0.5, 0.9]) == [1.0, 1.0]
    assert holm([]) == []
    with pytest.raises(InputError):
        holm([0.5, math.nan])


def test_randomisation_test_approaches_full_enumeration():
    differences = np.array([0.3, -0.1, 0.2, 0.4, 0.05, -0.2, 0.6, 0.1])
    observed = abs(differences.sum())
    sums = [abs(np.dot(signs, differences)) for signs in itertools.product([1, -1], repeat=8)]
    exact = np.mean([total >= observed - 1e-12 for total in sums])
    found = randomisation_test(differences, np.zeros(8), resamples=50_000)
    assert found == pytest.approx(exact, abs=0.01)


def test_randomisation_test_at_the_ends():
    assert randomisation_test([0.5] * 4, [0.5] * 4) == 1.0
    assert randomisation_test([1.0] * 40, [0.0] * 40, resamples=999) == 0.001
    a, b = [0.1, 0.5, 0.9], [0.2, 0.4, 0.4]
    assert randomisation_test(a, b) == randomisation_test(b, a)


def test_same_seed_same_result():
    values = np.linspace(0, 1, 37) ** 2
    assert bootstrap_interval(values, seed=3) == bootstrap_interval(values, seed=3)
    assert bootstrap_interval(values, seed=3) != bootstrap_interval(values, seed=4)


def test_bootstrap_interval_of_normal_values_is_the_textbook_one():
    values = np.random.default_rng(1).normal(5.0, 2.0, 2_000)
    half = 1.96 * values.std() / math.sqrt(len(values))
    assert bootstrap_interval(values) == pytest.approx((values.mean() - half, values.mean() + half), abs=0.01)
    assert bootstrap_interval([0.25] * 10) == (0.25, 0.25)


def test_p_values_are_calibrated():
    """P(p ≤ α) ≤ α under the null hypothesis, within four standard errors of the simulation."""
    generator = np.random.default_rng(7)
    trials = 1_000
    p_values = np.array(
        [randomisation_test(generator.normal(size=20), generator.normal(size=20), 499, seed) for seed in range(trials)]
    )
    for alpha in (0.01, 0.05, 0.1, 0.5):
        assert (p_values <= alpha).mean() <= alpha + 4 * math.sqrt(alpha * (1 - alpha) / trials)
        assert (p_values <= alpha).mean() >= alpha - 4 * math.sqrt(alpha * (1 - alpha) / trials) - 1 / 500


def test_intervals_cover():
    generator = np.random.default_rng(11)
    trials = 1_000
    covered = 0
    for seed in range(trials):
        low, high = bootstrap_interval(generator.beta(0.8, 0.6, 100), resamples=1_000, seed=seed)
        covered += low <= 0.8 / 1.4 <= high
    assert 0.93 <= covered / trials <= 0.97


def test_effect_and_number_of_queries_are_inverse():
    assert minimum_detectable_effect(0.3, 100) == pytest.approx(2.801585 * 0.03, abs=1e-6)
    n = required_queries(0.3, 0.05)
    assert n == 283
    assert minimum_detectable_effect(0.3, n) <= 0.05 < minimum_detectable_effect(0.3, n - 1)


def test_a_test_finds_the_detectable_effect_with_the_stated_power():
    effect = minimum_detectable_effect(1.0, 100)
    generator = np.random.default_rng(5)
    found = [randomisation_test(generator.normal(effect, 1, 100), np.zeros(100), 499) <= 0.05 for _ in range(500)]
    assert np.mean(found) == pytest.approx(0.8, abs=0.08)


@pytest.mark.parametrize("values", [[], [math.nan], [[1.0]], [math.inf]])
def test_bad_values(values):
    with pytest.raises(InputError, match="expected"):
        bootstrap_interval(values)


def test_bad_options():
    with pytest.raises(InputError, match="one pair a query"):
        randomisation_test([1.0], [1.0, 2.0])
    for call in (
        lambda: bootstrap_interval([1.0], level=1.0),
        lambda: bootstrap_interval([1.0], resamples=0),
        lambda: minimum_detectable_effect(1.0, 0),
        lambda: required_queries(1.0, 0),
    ):
        with pytest.raises(OptionError, match="expected"):
            call()
