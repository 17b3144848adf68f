"""A step whose images are encoded elsewhere: all at once, with the same bits, and a failure is the step's alone."""

from __future__ import annotations

from collections.abc import Iterator

import msgspec
import numpy as np
import pytest
import torch

from mmcached.wire.config import ServiceConfig
from mmcached.wire.errors import ServiceUnavailable
from mmcached.wire.messages.engine import StepFailed, StepOutput
from mmcached.wire.messages.parts import Inline
from mmcached.wire.messages.worker import EmitEmbedding, EncodeItem
from mmcached.wire.model_config import EncoderConfig
from mmcached.wire.sockets.frames import Frame
from mmcached.worker.encoders.remote import RemoteEncoder
from mmcached.worker.steps import runner as runners
from mmcached.worker.steps.runner import ModelRunner
from tests.worker.encoders.fake_actors import MODEL, FakeActor, FakeCluster
from tests.worker.oracle import random_image
from tests.worker.plans import plan
from tests.worker.rings import inline_frames

IMAGES = [random_image(np.random.default_rng(seed), (2, 3), 2) for seed in range(3)]
FRAMES: list[Frame] = [frame for image in IMAGES for frame in inline_frames(image)]
ENCODE = [EncodeItem(f"k{index}", f"k{index}", 6, Inline(3 * index, 3)) for index in range(len(IMAGES))]
EMIT = [EmitEmbedding(index, 0, item.key) for index, item in enumerate(ENCODE)]
LOCAL = ServiceConfig(model=MODEL, block_size=4, num_kv_blocks=40, max_model_len=64, world_size=1)
REMOTE = msgspec.structs.replace(LOCAL, encoder=EncoderConfig(ray_address="auto"))
CPU = torch.device("cpu")


@pytest.fixture
def cluster() -> FakeCluster:
    return FakeCluster(FakeActor("a"), FakeActor("b"))


@pytest.fixture
def runner(cluster: FakeCluster, monkeypatch: pytest.MonkeyPatch) -> Iterator[ModelRunner]:
    def make(*_: object) -> RemoteEncoder:
        return RemoteEncoder(cluster, device=CPU, limit_s=60.0, start_timeout_s=60.0)

    monkeypatch.setattr(runners, "make_remote_encoder", make)
    with ModelRunner(REMOTE, rank=0, device=CPU) as made:
        yield made


def test_the_images_of_a_step_are_under_way_together_and_have_the_same_bits(
    runner: ModelRunner, cluster: FakeCluster
) -> None:
    with ModelRunner(LOCAL, rank=0, device=CPU) as local:
        _, expected = local.execute(plan(1, encode=ENCODE, emit=EMIT), FRAMES)
    output, payload = runner.execute(plan(1, encode=ENCODE, emit=EMIT), FRAMES)
    assert isinstance(output, StepOutput)
    assert [bytes(frame) for frame in payload] == [bytes(frame) for frame in expected]
    assert sorted(len(actor.calls) for actor in cluster.found) == [1, 2]
    assert (runner.stats().items_encoded, runner.stats().items_copied) == (3, 3)


def test_a_step_without_actors_fails_and_can_be_tried_again(runner: ModelRunner, cluster: FakeCluster) -> None:
    for actor in cluster.found:
        actor.is_dead = True
    answer, payload = runner.execute(plan(1, encode=ENCODE, emit=EMIT), FRAMES)
    assert isinstance(answer, StepFailed)
    assert (answer.error.code, answer.error.retryable, payload) == (ServiceUnavailable.code, True, [])
    assert runner.stats().encoder_entries == 0
    output, _ = runner.execute(plan(2), [])
    assert isinstance(output, StepOutput), "what needs no encoder goes on"
