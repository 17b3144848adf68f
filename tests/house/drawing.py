"""Draws examples and seeds for tests: always the same in the suite, new ones and more of them in the soak.

make test    hypothesis profile "suite": examples follow from the test's source alone
make soak    hypothesis profile "soak": 20 times as many, from a seed that the header shows; `make soak SEED=…` repeats
"""

from __future__ import annotations

from hypothesis import HealthCheck, settings

SOAK_FACTOR = 20
_SUITE_EXAMPLES = 100
FIRST_SOAK_SEED = 10_000
"""Seeds below it are the suite's."""


def register_profiles() -> None:
    """Register and load the profiles of hypothesis; call it before a module with property tests is imported."""
    # no deadline: a time limit per example is a test of the machine's load
    settings.register_profile(
        "suite",
        deadline=None,
        suppress_health_check=[HealthCheck.too_slow],
        derandomize=True,
        max_examples=_SUITE_EXAMPLES,
    )
    settings.register_profile(
        "soak",
        deadline=None,
        suppress_health_check=[HealthCheck.too_slow],
        derandomize=False,
        max_examples=_SUITE_EXAMPLES * SOAK_FACTOR,
        print_blob=True,
    )
    settings.load_profile("suite")


def examples(count: int) -> int:
    """Return how many examples a property test takes now: `count` in the suite, 20 times as many in the soak."""
    return count * settings().max_examples // _SUITE_EXAMPLES


def soak_seeds(seed: int, count: int) -> range:
    """Return `count` seeds for a soak test that follow from the run's one seed, none of them the suite's."""
    first = FIRST_SOAK_SEED + seed % 1_000_003 * 10_000
    return range(first, first + count)
