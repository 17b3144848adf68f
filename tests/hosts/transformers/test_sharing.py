"""Processes share what their towers give: each image is encoded once, also where the service is killed."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
import torch

from mmcached.client import Client
from mmcached.integrations.transformers import cached_image_features
from mmcached.wire.process.death import environment_for_children
from tests.client.services import StoreService
from tests.hosts.transformers import features_child, models
from tests.hosts.transformers.outputs import ask, assert_equal, one_by_one, tensors
from tests.house import REPOSITORY
from tests.integration.lone_frontend import LoneFrontend
from tests.integration.processes import DEADLINE_S, eventually, small_config


class Child:
    """Another process with the same models; leave to end it."""

    def __init__(self, run_dir: Path) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-m", features_child.__name__, str(run_dir)],
            cwd=REPOSITORY,
            env=environment_for_children(),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def __enter__(self) -> Child:
        return self

    def __exit__(self, *error: object) -> None:
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.close()
        self.process.stdout.close()
        self.process.wait(DEADLINE_S)

    def tell(self, family: str, dtype: str) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(f"{family} {dtype}\n")
        self.process.stdin.flush()

    def hear(self) -> dict[str, Any]:
        assert self.process.stdout is not None
        heard: dict[str, Any] = json.loads(self.process.stdout.readline())
        return heard


@pytest.fixture
def children(run_dir: Path) -> Iterator[list[Child]]:
    with StoreService(run_dir), ExitStack() as undo:
        started = [undo.enter_context(Child(run_dir)) for _ in range(2)]
        assert all(child.hear() == {"ready": True} for child in started)
        yield started


def test_a_second_process_encodes_nothing_and_two_at_once_share(children: list[Child]) -> None:
    first, second = children
    for family, dtype in (("llava", "float32"), ("qwen3_vl", "bfloat16")):
        first.tell(family, dtype)
        alone = first.hear()
        assert (alone["encoded"], alone["images"]) == (2, 2)
        second.tell(family, dtype)
        assert second.hear() == alone | {"encoded": 0}
    for child in children:
        child.tell("gemma3", "float32")
    heard = [child.hear() for child in children]
    assert sum(each["encoded"] for each in heard) == 2
    assert heard[0]["logits"] == heard[1]["logits"]
    second.tell("gemma3", "bfloat16")
    assert second.hear()["encoded"] == 2, "another dtype has other bits"


@torch.no_grad()
def test_a_killed_service_is_a_miss_and_the_bits_stay(run_dir: Path) -> None:
    model, inputs = models.make("qwen2_5_vl")
    wanted = one_by_one(model, inputs)
    with LoneFrontend(run_dir, small_config(world_size=0)) as frontend, Client(run_dir) as client:
        with cached_image_features(model, client) as features:
            assert_equal(tensors(ask(model, inputs)), wanted)
            frontend.kill()
            assert_equal(tensors(ask(model, inputs)), wanted)
            assert features.num_encoded == 2, "hits need no service that lives"
            unseen = inputs | {"pixel_values": inputs["pixel_values"] + 1}
            new = tensors(ask(model, unseen))
            assert features.num_encoded == 4
            frontend.start()

            def num_encoded() -> int:
                before = features.num_encoded
                assert_equal(tensors(ask(model, unseen)), new)
                return features.num_encoded - before

            eventually(num_encoded, lambda count: count == 0, "it is kept again")
        assert features.num_bypassed == 0


@torch.no_grad()
def test_without_a_service_all_is_encoded(run_dir: Path) -> None:
    model, inputs = models.make("gemma3")
    wanted = one_by_one(model, inputs)
    with Client(run_dir) as client, cached_image_features(model, client) as features:
        for _ in range(2):
            assert_equal(tensors(ask(model, inputs)), wanted)
    assert (features.num_images, features.num_encoded, features.num_bypassed) == (4, 4, 0)


@torch.no_grad()
def test_a_store_too_small_is_a_miss(run_dir: Path) -> None:
    model, inputs = models.make("llava")
    wanted = one_by_one(model, inputs)
    with (
        StoreService(run_dir, store_gb=1 / 1024, store_max_object_mb=1),
        Client(run_dir) as client,
        cached_image_features(model, client) as features,
    ):
        many = {"pixel_values": models.pictures(600, 3, 56, 56)}
        ask(model, many)
        assert_equal(tensors(ask(model, inputs)), wanted)
    assert features.num_bypassed == 0
