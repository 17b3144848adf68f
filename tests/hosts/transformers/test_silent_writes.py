"""A write that leaves no trace is noticed when all weights are read; what was kept in between does not stay."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import pytest
import torch

from mmcached.client import Client
from mmcached.integrations.transformers import cached_image_features, features, tower_names
from tests.hosts.transformers import models
from tests.hosts.transformers.outputs import ask, assert_equal, one_by_one, tensors
from tests.integration.processes import eventually

CPU = torch.device("cpu")


def largest(model: Any) -> torch.Tensor:
    weights: list[torch.Tensor] = list(model.model.vision_tower.parameters())
    return max((weight for weight in weights if weight.dim() == 2), key=torch.Tensor.numel)


def first_half(model: Any) -> None:
    flat = largest(model).data.view(-1)
    flat[: len(flat) * 49 // 100] *= 1.5


def some_rows(model: Any) -> None:
    largest(model).detach().numpy()[:8] *= 1.5


def ends_of_vectors(model: Any) -> None:
    for weight in model.model.vision_tower.parameters():
        if weight.dim() == 1:
            weight.data[:4] += 1


def one_number(model: Any) -> None:
    largest(model).data[0, 0] += 1


WRITES = [first_half, some_rows, ends_of_vectors, one_number]


@pytest.mark.parametrize("write", WRITES, ids=lambda write: write.__name__)
@torch.no_grad()
def test_it_is_noticed_at_most_a_minute_later_and_what_was_kept_is_dropped(
    client: Client, monkeypatch: pytest.MonkeyPatch, write: Callable[[Any], None]
) -> None:
    model, inputs = models.make("llava")
    unseen = inputs | {"pixel_values": inputs["pixel_values"] + 1}
    with cached_image_features(model, client) as written:
        before = tensors(ask(model, inputs))
        first = written.fingerprint(CPU)
        assert written.read_weights()
        write(model)
        assert_equal(tensors(ask(model, inputs)), before)  # as the page says: for a minute it may not be seen
        ask(model, unseen)
        assert written.num_encoded == 4
        now = time.monotonic() + tower_names.MAX_AGE_S
        monkeypatch.setattr(tower_names, "monotonic", lambda: now)
        assert written.fingerprint(CPU) not in (None, first)
        assert_equal(tensors(ask(model, inputs)), one_by_one_of(model, written, inputs))
        assert written.num_encoded == 6
    other, _ = models.make("llava")
    with cached_image_features(other, client) as unwritten:
        assert unwritten.fingerprint(CPU) == first
        ask(other, inputs)
        assert unwritten.num_encoded == 0, "what was kept before was right"
        assert_equal(tensors(ask(other, unseen)), one_by_one_of(other, unwritten, unseen))
        assert unwritten.num_encoded == 2, "what was kept in between is gone"


def one_by_one_of(model: Any, asked: features.ImageFeatures, inputs: models.Inputs) -> list[torch.Tensor]:
    """Return what the model itself gives, in the middle of a block."""
    replaced = model.model.__dict__.pop("get_image_features")
    try:
        return one_by_one(model, inputs)
    finally:
        model.model.__dict__["get_image_features"] = replaced


@torch.no_grad()
def test_a_thread_reads_all_weights_again_and_again(client: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tower_names, "READ_AGAIN_S", 0.01)
    model, _ = models.make("llava")
    with cached_image_features(model, client) as asked:
        first = asked.fingerprint(CPU)
        one_number(model)
        eventually(lambda: asked.fingerprint(CPU), lambda name: name not in (None, first), "it is noticed")


@torch.no_grad()
def test_the_end_of_a_block_drops_what_was_kept_after_a_write(client: Client) -> None:
    model, inputs = models.make("llava")
    with cached_image_features(model, client):
        one_number(model)
        ask(model, inputs)
    other, _ = models.make("llava")
    with cached_image_features(other, client) as unwritten:
        ask(other, inputs)
    assert unwritten.num_encoded == 2


@torch.no_grad()
def test_what_is_encoded_while_weights_change_is_not_kept(client: Client) -> None:
    """Another thread may write between a call's look at the weights and the end of its encoding."""
    model, inputs = models.make("llava")
    with cached_image_features(model, client) as written:
        first = written.fingerprint(CPU)
        written._find = changing(written._find, largest(model))  # type: ignore[method-assign]
        ask(model, inputs)
        assert written.fingerprint(CPU) != first
    other, _ = models.make("llava")
    with cached_image_features(other, client) as unwritten:
        assert unwritten.fingerprint(CPU) == first
        ask(other, inputs)
    assert unwritten.num_encoded == 2


def changing(find: Callable[..., Any], weight: torch.Tensor) -> Callable[..., Any]:
    def changed(*values: Any, **named: Any) -> Any:
        weight.add_(1)
        return find(*values, **named)

    return changed
