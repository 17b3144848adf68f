"""An engine whose language model is trained encodes each image once; one whose tower is trained has another name.

vLLM packs the weights of linear layers here, as it does on every CPU: only its own `reload_weights` can write them.
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from mmcached.cli.serve.child_service import ChildService
from tests.hosts.prompts import image, text
from tests.hosts.vllm.conftest import MakeCheckpoint
from tests.hosts.vllm.engines import EngineProcess, joined
from tests.integration.processes import eventually, stats_of

IMAGES, SAMPLES, ROUNDS = 20, 8, 10
MESSAGES = [[image(number), text("What?")] for number in range(IMAGES)]


@pytest.fixture(scope="module")
def engine(
    checkpoint: MakeCheckpoint, store: ChildService, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[EngineProcess]:
    log = tmp_path_factory.mktemp("logs") / "engine.log"
    with EngineProcess(checkpoint("qwen2_5_vl"), log, joined(store.run_dir) | {"packs": True}) as engine:
        yield engine


def test_rounds_of_training_encode_each_image_once(engine: EngineProcess, store: ChildService) -> None:
    encoded = []
    for number in range(ROUNDS):
        encoded.append(len(engine.do("sample", messages=MESSAGES, count=SAMPLES)))
        eventually(lambda: stats_of(store.run_dir).store.puts, lambda now: now >= IMAGES, "all outputs are saved")
        engine.do("write", part="decoder", factor=2.0 ** (number % 3 - 1), way="reload")
    assert encoded == [IMAGES] + [0] * (ROUNDS - 1), f"not {ROUNDS * IMAGES * SAMPLES}"


def test_packed_weights_of_the_tower_are_in_its_name(engine: EngineProcess) -> None:
    before = engine.do("prefix")
    assert before
    engine.do("write", part="linear", factor=2.0, way="reload")
    assert engine.do("prefix") not in ("", before)
    engine.do("write", part="linear", factor=1.0, way="reload")
    assert engine.do("prefix") == before
