"""An encoder whose actors are elsewhere: who is asked, what is tried again, and what is never taken."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import msgspec
import numpy as np
import pytest
import torch

from mmcached.cache.output_names import ROWS
from mmcached.cache.store_keys import EMBEDDINGS
from mmcached.wire.errors import InvalidRequest, ServiceUnavailable
from mmcached.worker.encoders import remote
from mmcached.worker.encoders.actor_table import Answer
from mmcached.worker.encoders.reference import ReferenceEncoder
from mmcached.worker.encoders.remote import RemoteEncoder
from mmcached.worker.model.encoder import ItemEncoder
from tests.worker.encoders.fake_actors import MODEL, FakeActor, FakeCluster
from tests.worker.oracle import Item, num_embeds_of, random_image, random_sound, random_video
from tests.worker.rings import record_of

CPU = torch.device("cpu")
LOCAL = ReferenceEncoder(MODEL, ItemEncoder(MODEL, CPU))
_RNG = np.random.default_rng(0)
IMAGE = random_image(_RNG, (2, 3), 2)
RECORD = {"pixel_values": torch.from_numpy(IMAGE.pixel_values), "grid": torch.tensor(IMAGE.grid)}
OTHER_MODEL = msgspec.structs.replace(MODEL, seed=4)
Make = Callable[..., RemoteEncoder]


@pytest.fixture
def make(monkeypatch: pytest.MonkeyPatch) -> Iterator[Make]:
    """Make encoders that look for actors often, and are closed in the end."""
    monkeypatch.setattr(remote, "LOOK_S", 0.001)
    monkeypatch.setattr(remote, "REST_S", 30.0)
    made = []

    def make(
        cluster: FakeCluster, *, limit_s: float = 60.0, start_timeout_s: float = 60.0, **more: str
    ) -> RemoteEncoder:
        made.append(
            RemoteEncoder(cluster, device=CPU, limit_s=limit_s, start_timeout_s=start_timeout_s, **more)  # type: ignore[arg-type]
        )
        return made[-1]

    yield make
    for encoder in made:
        encoder.close()


def assert_right(encoder: RemoteEncoder) -> None:
    outputs = encoder.encode(RECORD, 6)
    assert list(outputs) == [EMBEDDINGS]
    assert torch.equal(outputs[EMBEDDINGS], LOCAL.encode(RECORD, 6)[EMBEDDINGS])


def num_calls(cluster: FakeCluster) -> list[int]:
    return [len(actor.calls) for actor in cluster.found]


def test_it_says_of_itself_and_of_an_image_what_an_encoder_here_says(make: Make) -> None:
    encoder = make(cluster := FakeCluster(FakeActor("a")))
    assert (encoder.fingerprint, encoder.measure()) == (LOCAL.fingerprint, LOCAL.measure())
    assert_right(encoder)
    encoder.close()
    encoder.close()
    assert cluster.num_closed == 1


def test_it_has_the_rows_of_its_actors_name(make: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    assert make(FakeCluster(FakeActor("a"))).rows is None
    rows = dict.fromkeys(ROWS) | {"host": "service", "device": {"type": "cuda", "major": 9}}
    monkeypatch.setattr(ReferenceEncoder, "rows", rows)
    assert make(FakeCluster(FakeActor("a"))).rows == rows


@pytest.mark.parametrize("item", [random_video(_RNG, (2, 1), 2), random_sound(_RNG, 3, MODEL.audio_frame)])
def test_slices_of_clips_are_sent_as_images_are(make: Make, item: Item) -> None:
    encoder = make(FakeCluster(FakeActor("a")))
    record, num_embeds = {name: torch.as_tensor(each) for name, each in record_of(item).items()}, num_embeds_of(item)
    found = encoder.encode(record, num_embeds)[EMBEDDINGS]
    assert torch.equal(found, LOCAL.encode(record, num_embeds)[EMBEDDINGS])


def test_images_of_a_step_are_under_way_together_with_the_least_loaded(make: Make) -> None:
    cluster = FakeCluster(*(FakeActor(name) for name in "abc"))
    encoder = make(cluster)
    for actor in cluster.found:
        actor.is_slow = True
    waiting = [encoder.begin(RECORD, 6) for _ in range(5)]
    assert sorted(num_calls(cluster)) == [1, 2, 2]
    for actor in cluster.found:
        for call in actor.calls:
            call.is_held = False
    assert all(torch.equal(finish()[EMBEDDINGS], LOCAL.encode(RECORD, 6)[EMBEDDINGS]) for finish in waiting)


def test_a_dead_actor_is_lost_and_another_one_asked_once(make: Make) -> None:
    cluster = FakeCluster(FakeActor("a"), FakeActor("b"))
    encoder = make(cluster)
    cluster.found[0].is_dead = True
    for _ in range(2):
        assert_right(encoder)
    assert len(cluster.found[0].calls) <= 1
    cluster.found[1].is_dead = True
    cluster.found[0].calls.clear()
    cluster.found[1].calls.clear()
    with pytest.raises(ServiceUnavailable) as caught:
        encoder.encode(RECORD, 6)
    assert caught.value.retryable
    assert sum(num_calls(cluster)) <= 2


def test_it_works_again_when_actors_return(make: Make) -> None:
    cluster = FakeCluster(FakeActor("a"))
    encoder = make(cluster)
    cluster.found[0].is_dead = True
    with pytest.raises(ServiceUnavailable):
        encoder.encode(RECORD, 6)
    cluster.is_unreachable = True
    with pytest.raises(ServiceUnavailable):
        encoder.encode(RECORD, 6)
    cluster.found, cluster.is_unreachable = [FakeActor("b")], False
    for _ in range(10_000):
        try:
            assert_right(encoder)
        except ServiceUnavailable:
            continue
        return
    raise AssertionError("the actor that has returned is not asked")


def test_the_first_actor_has_half_of_the_time(make: Make) -> None:
    cluster = FakeCluster(FakeActor("a"), FakeActor("b"))
    encoder = make(cluster, limit_s=50.0)
    for actor in cluster.found:
        actor.is_slow = True
    with pytest.raises(ServiceUnavailable, match="in time"):
        encoder.encode(RECORD, 6)
    assert num_calls(cluster) == [1, 1]
    first, second = (cluster.found[index].calls[0].timeouts[0] for index in (0, 1))
    assert min(first, second) <= 25.0 < max(first, second) <= 50.0


def lie(answer: Answer) -> Answer:
    return answer[0], answer[1], answer[2], np.zeros(64, np.uint8)


def be_another(answer: Answer) -> Answer:
    return "f" * 32, *answer[1:]


def test_actors_answer_while_the_cluster_does_not(make: Make) -> None:
    cluster = FakeCluster(FakeActor("a"))
    encoder = make(cluster)
    cluster.is_unreachable = True
    before = cluster.num_looks
    while cluster.num_looks < before + 3:
        assert_right(encoder)


@pytest.mark.parametrize("change", [lie, be_another])
def test_an_answer_that_is_no_output_of_this_encoder_is_not_taken(make: Make, change: Callable[..., Answer]) -> None:
    cluster = FakeCluster(FakeActor("a"))
    encoder = make(cluster)
    cluster.found[0].change = change
    with pytest.raises(ServiceUnavailable):
        encoder.encode(RECORD, 6)
    cluster.found.append(FakeActor("b"))
    while len(cluster.found[1].calls) == 0:
        try:
            assert_right(encoder)
        except ServiceUnavailable:
            continue


def test_an_error_of_the_encoder_is_raised_and_not_tried_again(make: Make) -> None:
    cluster = FakeCluster(FakeActor("a"), FakeActor("b"))
    with pytest.raises(InvalidRequest) as caught:
        make(cluster).encode(RECORD, 5)
    assert caught.value.details["field"] == "num_embeds"
    assert sum(num_calls(cluster)) == 1


def test_those_that_compute_otherwise_are_not_asked(make: Make) -> None:
    others = [FakeActor(name, OTHER_MODEL) for name in "ab"]
    cluster = FakeCluster(*others, FakeActor("c"))
    encoder = make(cluster, fingerprint=LOCAL.fingerprint)
    for _ in range(3):
        assert_right(encoder)
    assert num_calls(cluster) == [0, 0, 3]
    assert make(cluster).fingerprint != LOCAL.fingerprint, "what most of them have"


def test_without_an_actor_it_is_not_made(make: Make, caplog: pytest.LogCaptureFixture) -> None:
    for cluster in (FakeCluster(), FakeCluster(FakeActor("a", OTHER_MODEL))):
        with pytest.raises(ServiceUnavailable, match="mmcached ray up"):
            make(cluster, start_timeout_s=0.01, fingerprint=LOCAL.fingerprint)
        assert cluster.num_closed == 1
    assert "another model?" in caplog.text
