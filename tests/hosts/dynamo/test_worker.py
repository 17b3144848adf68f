"""Dynamo's own argument parser, and its names of images, with engines of vLLM that share by our connector.

Dynamo's runtime (frontend, router, etcd, NATS) is not started: what its worker gives to vLLM is what counts here.
"""

from __future__ import annotations

import base64
import dataclasses
import io
import json
import os
import signal
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from PIL import Image

from mmcached.cli.serve.child_service import ChildService
from mmcached.integrations.vllm.keys import is_content_hash
from tests.docs.pages import code, shell_lines
from tests.hosts.prompts import Content, image, text
from tests.hosts.vllm.conftest import MakeCheckpoint
from tests.hosts.vllm.engines import EngineProcess
from tests.house import REPOSITORY
from tests.integration.processes import eventually, role_pids, stats_of

with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    from dynamo.vllm.args import Config, parse_args
    from dynamo.vllm.multimodal_utils.cache_config import configure_multimodal_embedding_cache
    from dynamo.vllm.multimodal_utils.hash_utils import compute_mm_uuids_from_images
    from dynamo.vllm.multimodal_utils.request_processor import mark_forwarded_mm_hashes_for_routing

pytestmark = pytest.mark.filterwarnings("ignore")

PAGE = REPOSITORY / "docs" / "hosts" / "dynamo.md"


def worker(model: Path, run_dir: Path, *more: str) -> Config:
    """Return what Dynamo makes of the page's command line of a worker."""
    (words,) = [words for block in code(PAGE, "sh") for words in shell_lines(block) if "dynamo.vllm" in words]
    words = words[words.index("dynamo.vllm") + 1 :]
    words[words.index("--model") + 1] = str(model)
    joined = json.loads(words[words.index("--ec-transfer-config") + 1])
    joined["ec_connector_extra_config"] = {"run_dir": str(run_dir)}
    words[words.index("--ec-transfer-config") + 1] = json.dumps(joined)
    return parse_args([*words, *more])


def configure_cache(config: Config) -> None:
    """Do what a worker of Dynamo does with its arguments before it makes an engine."""
    configure_multimodal_embedding_cache(
        config.engine_args,
        route_to_encoder=config.route_to_encoder,
        capacity_gb=config.multimodal_embedding_cache_capacity_gb,
        namespace=config.namespace,
        component=config.component,
    )


def engine_options(config: Config) -> dict[str, Any]:
    configure_cache(config)
    joined = config.engine_args.ec_transfer_config
    return {
        "ec_transfer_config": {
            each.name: getattr(joined, each.name) for each in dataclasses.fields(joined) if each.init
        }
    }


def asked(number: int, uuid: str | None = None) -> Content:
    return [image(number, side=112) | ({} if uuid is None else {"uuid": uuid}), text("What?")]


@pytest.fixture(scope="module")
def engines(
    checkpoint: MakeCheckpoint, store: ChildService, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[tuple[EngineProcess, EngineProcess, EngineProcess]]:
    """Two engines with a worker's arguments, and one that shares nothing."""
    model, logs = checkpoint("qwen2_5_vl"), tmp_path_factory.mktemp("logs")
    options = engine_options(worker(model, store.run_dir))
    with (
        EngineProcess(model, logs / "one", options) as one,
        EngineProcess(model, logs / "two", options) as two,
        EngineProcess(model, logs / "alone", {}) as alone,
    ):
        yield one, two, alone


def wait_until_saved(store: ChildService, records_before: int) -> None:
    eventually(lambda: stats_of(store.run_dir).store.ring.chunks, lambda now: now > records_before, "another record")


def test_the_arguments_of_a_worker_reach_vllm(tmp_path: Path) -> None:
    config = worker(tmp_path, tmp_path)
    configure_cache(config)
    joined = config.engine_args.ec_transfer_config
    assert (joined.ec_connector, joined.ec_role) == ("MmcachedECConnector", "ec_both")
    assert joined.ec_connector_module_path == "mmcached.integrations.vllm"


def test_dynamos_own_cache_takes_the_place_of_the_connector(tmp_path: Path) -> None:
    config = worker(tmp_path, tmp_path, "--multimodal-embedding-cache-capacity-gb", "1")
    configure_cache(config)
    assert config.engine_args.ec_transfer_config.ec_connector == "DynamoMultimodalEmbeddingCacheConnector"


def test_a_second_worker_encodes_nothing(
    engines: tuple[EngineProcess, EngineProcess, EngineProcess], store: ChildService
) -> None:
    one, two, alone = engines
    before = stats_of(store.run_dir).store.ring.chunks
    first = one.do("ask", messages=[asked(1)])
    wait_until_saved(store, before)
    second, unshared = two.do("ask", messages=[asked(1)]), alone.do("ask", messages=[asked(1)])
    assert (len(first["encoded"]), second["encoded"], len(unshared["encoded"])) == (1, [], 1)
    assert first["answers"] == second["answers"] == unshared["answers"]


def test_the_name_that_a_worker_computes_is_shared(
    engines: tuple[EngineProcess, EngineProcess, EngineProcess], store: ChildService
) -> None:
    one, two, _ = engines
    file = io.BytesIO(base64.b64decode(image(2, side=112)["image_url"]["url"].partition(",")[2]))
    (name,) = compute_mm_uuids_from_images([Image.open(file).convert("RGB")])
    before = stats_of(store.run_dir).store.ring.chunks
    first = one.do("ask", messages=[asked(2, name)])
    wait_until_saved(store, before)
    second = two.do("ask", messages=[asked(2, name)])
    assert (len(first["encoded"]), second["encoded"]) == (1, [])
    assert first["answers"] == second["answers"]


def test_a_name_for_the_router_is_no_content(engines: tuple[EngineProcess, EngineProcess, EngineProcess]) -> None:
    """A router's name may be of an address, whose picture changes."""
    one, two, alone = engines
    (name,) = mark_forwarded_mm_hashes_for_routing(["0123456789abcdef" * 4])
    assert name is not None
    assert not is_content_hash(name)
    assert len(one.do("ask", messages=[asked(3, name)])["encoded"]) == 1
    other = two.do("ask", messages=[asked(4, name)])
    assert len(other["encoded"]) == 1
    assert other["answers"] == alone.do("ask", messages=[asked(4)])["answers"]


def test_a_store_killed_within_requests_changes_no_answer(
    engines: tuple[EngineProcess, EngineProcess, EngineProcess], store: ChildService
) -> None:
    """Two bursts: of new pictures, and of some that the former store had and some that nobody has encoded."""
    one, two, alone = engines
    for numbers in (range(10, 14), range(12, 16)):
        messages = [asked(number) for number in numbers]
        wanted = alone.do("ask", messages=messages)["answers"]
        for engine in (one, two):
            engine.begin("ask", messages=messages)
        os.kill(role_pids(store.process.pid)["frontend"][0], signal.SIGKILL)
        assert [engine.answer()["answers"] for engine in (one, two)] == [wanted, wanted]
        eventually(lambda: role_pids(store.process.pid)["frontend"], bool, "another frontend")
