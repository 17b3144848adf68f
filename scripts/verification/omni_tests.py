"""Runs vllm-omni 0.30's own tests of its prefix cache manager with ours in its place: `make verify-omni`.

Prints each test with its outcome. A test that looks into the manager, at an attribute with a leading underscore, cannot
run; every other test that fails makes the status 1.

Needs vllm-omni's sources for the tests, which its packages lack, and the environment of `make test-vllm-omni`.
"""

from __future__ import annotations

import argparse
import re
from collections import Counter
from pathlib import Path

import pytest

from mmcached.compat.omni_prefix_cache_manager import OmniPrefixCacheManager

TESTS = "tests/core/test_prefix_cache.py"
MANAGER = OmniPrefixCacheManager.__name__
LOOKS_INSIDE = re.compile(rf"AttributeError: '{MANAGER}' object has no attribute '(_\w+)'")


class Outcomes:
    """A plugin of pytest: puts our manager into the tests' module, and collects what became of each test."""

    def __init__(self) -> None:
        self.by_test: dict[str, str] = {}

    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
        for item in items:
            if isinstance(item, pytest.Function) and hasattr(item.module, MANAGER):
                setattr(item.module, MANAGER, OmniPrefixCacheManager)

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        test = report.nodeid.rpartition("::")[2]
        if report.failed:
            found = LOOKS_INSIDE.search(report.longreprtext)
            self._note(test, "FAILED" if found is None else f"looks at {found[1]}")
            if found is None:
                print(report.longreprtext)
        elif report.skipped and isinstance(report.longrepr, tuple):
            self._note(test, report.longrepr[2])
        elif report.when == "call":
            self._note(test, "passed")

    def _note(self, test: str, outcome: str) -> None:
        self.by_test[test] = outcome
        print(f"{test}: {outcome}", flush=True)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("source", type=Path, help="folder with vllm-omni's sources")
    source: Path = parser.parse_args().source
    if not (source / TESTS).is_file():
        parser.error(f"{source / TESTS} is missing: VLLM_OMNI_SOURCE must be a folder with vllm-omni 0.30's sources")
    outcomes = Outcomes()
    options = ["-p", "no:terminal", "-p", "no:cacheprovider", "-o", "addopts=", "-o", "filterwarnings=ignore"]
    status = pytest.main(
        [*options, f"--rootdir={source}", f"--confcutdir={(source / TESTS).parent}", str(source / TESTS)],
        plugins=[outcomes],
    )
    kinds = Counter("looks inside" if each.startswith("looks") else each for each in outcomes.by_test.values())
    print(", ".join(f"{number} {kind}" for kind, number in kinds.most_common()))
    return int(not outcomes.by_test or bool(kinds["FAILED"]) or status == pytest.ExitCode.INTERNAL_ERROR)


if __name__ == "__main__":
    raise SystemExit(main())
