"""Runs vLLM 0.33's own `tests/v1/core` with our KV cache manager in its scheduler's place: `make verify-kv-vllm`.

Prints each test with its outcome. A test that uses a feature which our manager does not offer is skipped by the
refusal of `vllm_face`; the other tests that do not pass are in `DIFFERENCES`, each with its line of `docs/kv-cache.md`.
The status is 1 if a test fails that is not in the table.

Needs vLLM's sources, whose package is imported from there, and the environment of `make test-vllm` for what they need.
"""

from __future__ import annotations

import argparse
import importlib
import logging
import os
import re
import sys
import tempfile
import types
from collections import Counter
from collections.abc import Generator, Iterator
from pathlib import Path
from typing import Any

import pytest

from scripts.verification.vllm_models import write_models

TESTS = "tests/v1/core"
SETTINGS = {
    "CUDA_VISIBLE_DEVICES": "",
    "HF_HUB_OFFLINE": "1",
    "VLLM_NO_USAGE_STATS": "1",
}

NEED_WEIGHTS = ("test_reset_prefix_cache_e2e", "test_scheduler_e2e", "test_hybrid_prefix_cache_hit_rate")
"""Modules whose tests run a whole model of Hugging Face."""

DIFFERENCES: dict[str, tuple[str, ...]] = {
    "hits that end inside a block": (
        "test_boundary_state_offer_includes_more_mamba_groups_than_two",
        "test_boundary_state_offloads_block_aligned_prompt",
        "test_boundary_states_offered_past_prompt_for_resumed_prefill",
        "test_cow_re(tained_blocks_returned_for_release|tentions_deferred_until_copy_step_processed)",
        "test_dcp_(fine_hit_retention_uses_hash_alignment|partial_hit_resumes_on_replicated_mamba_snapshot)",
        "test_dcp_joint_hit_is_bounded_by_replicated_mamba_snapshots",
        "test_eagle_group_registers_unaligned_tail_under_partial_hash_hits",
        "test_eagle_hybrid_mamba_hits_partial_prompt_boundary",
        "test_external_mamba_hit_same_block_uses_running_cow_on_continue",
        "test_finished_partial_tail_uses_table_source_once",
        "test_hybrid_mamba_(align_partial_hash_hit|moved_partial_entry_defers_same_step_hit)",
        "test_hybrid_mamba_partial_tail_owner_(continue_preserves_later_hit|uses_cow_on_continue)",
        "test_lookahead_checkpoint_has_available_hash",
        "test_lookahead_split_caches_partial_tail_boundary",
        "test_mamba_boundary_handoffs_do_not_pin_obsolete_blocks",
        "test_mamba_partial_(hit_requires_matching_lookahead_tokens|tail_hits_below_eagle_proof_boundary)",
        "test_resolved_cache_hit_alignment_matches_coordinator",
        "test_(retention_snapshots_handed_off_with_exact_block_ids|snapshot_handoff_dense_default_retention)",
        "test_truncate_computed_blocks_(allows_short_mamba_group_only|preserves_sparse_prefix_positions)",
    ),
    "hits of different lengths in groups": (
        "test_hybrid_divergent_hit_fallback_is_capped_at_retained_auxiliary_outputs",
        "test_hybrid_fa_deeper_hit_respects_connector_lookup_policy",
        "test_hybrid_per_group_hit_divergence_with_connector",
    ),
    "states kept where requests part": (
        "test_hybrid_cache_mamba_align_shared_prefix_detection",
        "test_mamba_shared_prefix_reuse_under_zero_retention",
    ),
    "an event for each step and group": ("test_kv_cache_events", "test_kv_cache_events_with_lora"),
    "sessions in events": ("test_block_stored_event_session_id",),
    "a hit whose blocks were not published is refused": (
        "test_cache_hit_local_and_external(_(two|three)_groups_preempt_and_reallocate|_three_groups)?",
    ),
    "methods of vLLM's pool that only tests call": (
        "test_block_stored_event_group_idx(_multiple_groups|_out_of_bounds)?",
    ),
}
"""Reasons why tests cannot pass, with patterns of their names; each is a row of `docs/kv-cache.md`.

A pattern stands for all parameters of a test, of which some may pass.
"""


class Outcomes:
    """A plugin of pytest: skips what is not offered, and collects what became of each test."""

    def __init__(self, not_offered: type[Exception]) -> None:
        self._not_offered = not_offered
        self.by_test: dict[str, str] = {}

    @pytest.fixture
    def caplog_vllm(self, caplog: pytest.LogCaptureFixture) -> Iterator[pytest.LogCaptureFixture]:
        """Let vLLM's messages reach `caplog`, as the fixture of this name in vLLM's `conftest.py` does."""
        logger = logging.getLogger("vllm")
        logger.propagate = True
        yield caplog
        logger.propagate = False

    def pytest_runtest_setup(self, item: pytest.Item) -> None:
        if item.path.stem in NEED_WEIGHTS:
            pytest.skip("needs a model's weights")

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_call(self) -> Generator[None]:
        try:
            return (yield)
        except self._not_offered as error:
            pytest.skip(f"not offered: {error}")

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        test = report.nodeid.removeprefix(f"{TESTS}/")
        if report.skipped and isinstance(report.longrepr, tuple):
            self._note(test, report.longrepr[2].removeprefix("Skipped: "))
        elif report.failed:
            reason = difference_of(test)
            self._note(test, "FAILED" if reason is None else f"differs: {reason}")
            if reason is None:
                print(report.longreprtext)
        elif report.when == "call":
            self._note(test, "passed")

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        if report.failed:
            self._note(report.nodeid.removeprefix(f"{TESTS}/"), "FAILED to be collected")
            print(report.longreprtext)

    def _note(self, test: str, outcome: str) -> None:
        self.by_test[test] = outcome
        print(f"{test}: {outcome}", flush=True)


def difference_of(test: str) -> str | None:
    """Return the reason why a test cannot pass; None if it must."""
    return next(
        (reason for reason, names in DIFFERENCES.items() for name in names if re.search(rf"::{name}(\[|$)", test)),
        None,
    )


def use_ours(source: Path) -> type[Exception]:
    """Import vLLM from its sources, with our manager for its scheduler; return what the manager refuses with."""
    sys.path.insert(0, str(source))
    os.environ["PYTHONPATH"] = os.pathsep.join([str(source), os.environ.get("PYTHONPATH", "")])  # vLLM's children
    sys.modules["tests"] = types.ModuleType("tests")
    sys.modules["tests"].__path__ = [str(source / "tests")]
    platforms: Any = importlib.import_module("vllm.platforms")
    platforms.current_platform = importlib.import_module("vllm.platforms.cpu").CpuPlatform()
    face = importlib.import_module("scripts.verification.vllm_face")
    manager: Any = importlib.import_module("vllm.v1.core.kv_cache_manager")
    manager.KVCacheManager = face.KVCacheManager
    refusal: type[Exception] = face.NotOffered
    return refusal


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("source", type=Path, help="a folder with vLLM's sources, of its release 0.33.0")
    parser.add_argument("--only", default="", help="an expression for `pytest -k`")
    options = parser.parse_args()
    source = options.source.resolve()
    os.environ.update(SETTINGS)
    outcomes = Outcomes(use_ours(source))
    with tempfile.TemporaryDirectory() as folder:
        os.environ["VLLM_CACHE_ROOT"] = str(Path(folder) / "cache")
        write_models(Path(folder))
        os.chdir(folder)
        arguments = ["--rootdir", str(source), "--noconftest", "--import-mode=append", "-p", "no:cacheprovider"]
        arguments += ["-p", "no:terminal", "-k", options.only, "--continue-on-collection-errors"]
        pytest.main([*arguments, str(source / TESTS)], plugins=[outcomes])
        os.chdir(source)
    for outcome, number in Counter(outcomes.by_test.values()).most_common():
        print(f"{number:5} {outcome}")
    return int(any(outcome.startswith("FAILED") for outcome in outcomes.by_test.values()))


if __name__ == "__main__":
    sys.exit(main())
