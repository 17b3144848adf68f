"""The same prompts in more kinds of engines: each answers as a server alone, and a second one encodes nothing.

Takes three starts of vLLM each; all but the tower with several outputs are part of the soak only.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from mmcached.cli.serve.child_service import ChildService
from mmcached.client import Client
from tests.hosts.prompts import messages
from tests.hosts.vllm.conftest import MakeCheckpoint
from tests.hosts.vllm.servers import VllmServer
from tests.hosts.vllm.sharing import SMALL_STEPS, Pair, ask_all

MESSAGES = list(messages(200, seed=7, images=range(60)))
NO_PREFIXES = {"no-enable-prefix-caching": True}
ONE_STEP = {"max-num-batched-tokens": 2048}
UNNAMED = NO_PREFIXES | {"mm-processor-cache-gb": 0}
"""Neither cache needs a hash of an image, so vLLM makes none: it numbers the items, alike in every server."""


@pytest.mark.parametrize(
    ("kind", "options"),
    [
        pytest.param("qwen3_vl", SMALL_STEPS, id="several outputs per item"),
        pytest.param("qwen2_5_vl", SMALL_STEPS | NO_PREFIXES, id="no prefixes", marks=pytest.mark.soak),
        pytest.param("qwen2_5_vl", ONE_STEP, id="one step per prompt", marks=pytest.mark.soak),
        pytest.param("qwen3_vl", ONE_STEP | NO_PREFIXES, id="several outputs, one step", marks=pytest.mark.soak),
        pytest.param("llava", SMALL_STEPS, id="images of one size", marks=pytest.mark.soak),
    ],
)
def test_answers_are_those_of_a_server_alone(
    kind: str, options: dict[str, Any], checkpoint: MakeCheckpoint, store: ChildService, tmp_path: Path
) -> None:
    with Client(store.run_dir) as client:
        client.flush()  # the outputs of a tower are the same, however prompts are computed
    with VllmServer(checkpoint(kind), tmp_path / "alone.log", options) as server:
        alone = ask_all(server, MESSAGES)
    with Pair(checkpoint(kind), store.run_dir, tmp_path, options) as pair:
        assert ask_all(pair.first, MESSAGES) == alone
        assert pair.first.items_encoded()
        pair.wait_until_saved()
        assert ask_all(pair.second, MESSAGES) == alone
        assert pair.second.items_encoded() == []


@pytest.mark.soak
def test_items_without_a_hash_are_not_shared(checkpoint: MakeCheckpoint, store: ChildService, tmp_path: Path) -> None:
    with VllmServer(checkpoint("qwen2_5_vl"), tmp_path / "alone.log", SMALL_STEPS | UNNAMED) as server:
        alone = ask_all(server, MESSAGES)
    with Pair(checkpoint("qwen2_5_vl"), store.run_dir, tmp_path, SMALL_STEPS | UNNAMED) as pair:
        assert ask_all(pair.first, MESSAGES) == alone
        assert ask_all(pair.second, MESSAGES[::-1]) == alone[::-1]
        assert pair.second.items_encoded()
