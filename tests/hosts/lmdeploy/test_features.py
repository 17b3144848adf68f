"""LMDeploy's own encoder with a store: nothing encoded twice, and the embeddings that it would compute itself."""

from __future__ import annotations

import asyncio
import hashlib
import json
import subprocess
import sys
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from mmcached.cache.name_files import differences, known_names
from mmcached.client import Client
from mmcached.integrations.lmdeploy.messages import content_of, items_in
from tests.docs.pages import code
from tests.hosts.lmdeploy.encoder_child import OWN_INFER, QUERIES, WIDTH, Encoder, picture
from tests.house import REPOSITORY
from tests.integration.lone_frontend import LoneFrontend

NewEncoder = Callable[..., Encoder]
DEADLINE_S = 200.0

with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    from lmdeploy.vl import engine

pytestmark = pytest.mark.filterwarnings("ignore")


def equal(found: list[torch.Tensor], wanted: list[torch.Tensor]) -> bool:
    return len(found) == len(wanted) and all(torch.equal(*pair) for pair in zip(found, wanted, strict=True))


def test_a_second_process_encodes_nothing(new_encoder: NewEncoder, checkpoint: Path, store: LoneFrontend) -> None:
    first = new_encoder()
    wanted = first.ask(1, 2)
    assert sum(first.encoded) == 2
    words = [str(checkpoint), str(store.directory.path), "2", "1"]
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-m", "tests.hosts.lmdeploy.encoder_child", *words],
        check=True,
        stdout=subprocess.PIPE,
        timeout=DEADLINE_S,
    )
    answer = json.loads(done.stdout)
    digests = [hashlib.sha256(each.numpy().tobytes()).hexdigest() for each in wanted]
    assert answer == {"digests": digests[::-1], "encoded": 0}


def test_only_what_is_new_is_encoded(new_encoder: NewEncoder) -> None:
    first, second, alone = new_encoder(), new_encoder(), new_encoder(installs=False)
    assert equal(first.ask(1, 2), alone.ask(1, 2))
    assert equal(second.ask(2, 3, 1, 4), alone.ask(2, 3, 1, 4))
    assert second.encoded == [2]
    assert (second.shared.num_items, second.shared.num_found) == (4, 2)
    assert alone.shared is None


def test_a_picture_of_several_slices_is_one_item(new_encoder: NewEncoder) -> None:
    first, second, alone = (new_encoder(kind="minicpmv", installs=each) for each in (True, True, False))
    wanted = alone.ask(1, 2, 3)
    assert equal(first.ask(1, 2, 3), wanted)
    assert {tuple(each.shape) for each in wanted} == {(QUERIES, WIDTH)}
    assert equal(second.ask(3, 4, 1), alone.ask(3, 4, 1))
    assert second.encoded == [1]


def test_a_killed_store_changes_no_answer(new_encoder: NewEncoder, store: LoneFrontend) -> None:
    first, second, alone = new_encoder(), new_encoder(), new_encoder(installs=False)
    for encoder in (first, second):
        encoder.ask(1)
    store.kill()
    for encoder in (first, second):
        assert equal(encoder.ask(1, 5), alone.ask(1, 5))
    store.start()
    assert equal(second.ask(1, 5, 7), alone.ask(1, 5, 7))


def test_a_store_killed_within_a_request_changes_no_answer(new_encoder: NewEncoder, store: LoneFrontend) -> None:
    """Killed after the look-up, while a new picture is encoded beside a known one."""
    first, second, alone = new_encoder(), new_encoder(), new_encoder(installs=False)
    first.ask(1)
    forward = second.own.model.forward

    def kill_and_forward(*values: Any) -> Any:
        if store.process.poll() is None:
            store.kill()
        return forward(*values)

    second.own.model.forward = kill_and_forward
    assert equal(second.ask(1, 5), alone.ask(1, 5))
    assert store.process.poll() is not None
    assert equal(second.ask(5, 6), alone.ask(5, 6))
    store.start()
    assert equal(first.ask(1, 5, 7), alone.ask(1, 5, 7))


@pytest.mark.parametrize(
    "wrong",
    [
        {"features": torch.zeros(4, 8)},
        {"features": [torch.zeros(64, 8)]},
        {"features": [torch.zeros(3, 128)]},
        {"features": []},
        {"embedding": torch.zeros(64, 128)},
    ],
    ids=["no list", "narrow", "rows", "none", "other names"],
)
def test_a_record_that_the_model_cannot_take_is_replaced(
    new_encoder: NewEncoder, store: LoneFrontend, wrong: dict[str, object]
) -> None:
    """It comes from a program of the same user that puts wrong records under right keys."""
    first, second, alone = new_encoder(), new_encoder(), new_encoder(installs=False)
    first.ask(9)
    message = {"role": "user", "content": [{"type": "image", "data": picture(1)}, {"type": "text", "text": "What?"}]}
    (item,) = items_in(first.own.model.preprocess([message]))
    with Client(store.directory.path, fail_open=False) as writer:
        assert writer.put(f"encoder/{first.shared.name}/{content_of(item)}", wrong)
    assert equal(first.ask(1), alone.ask(1))
    assert sum(first.encoded) == 1
    assert equal(second.ask(1), alone.ask(1))
    assert second.encoded == []


def test_written_weights_have_another_name(new_encoder: NewEncoder) -> None:
    first, second, trained = new_encoder(), new_encoder(), new_encoder(scale=2.0)
    first.ask(1)
    name = first.shared.name
    with torch.no_grad():
        first.projector.mul_(2.0)
    assert equal(first.ask(1), trained.ask(1))
    assert sum(first.encoded) == 1
    assert first.shared.name == trained.shared.name != name
    assert trained.encoded == []
    first.ask(2)
    second.ask(2)
    assert sum(second.encoded) == 1


def test_what_weights_gave_that_were_written_within_a_request_is_not_saved(new_encoder: NewEncoder) -> None:
    first, second, alone = new_encoder(), new_encoder(), new_encoder(installs=False)
    forward = first.own.model.forward

    def write_and_forward(*values: Any) -> Any:
        with torch.no_grad():
            first.projector.mul_(2.0)
        return forward(*values)

    first.own.model.forward = write_and_forward
    first.ask(1)
    assert equal(second.ask(1), alone.ask(1))


def test_another_checkpoint_has_another_name(
    new_encoder: NewEncoder, checkpoint: Path, store: LoneFrontend, tmp_path: Path
) -> None:
    copy = tmp_path / "copy"
    copy.mkdir()
    for file in checkpoint.iterdir():
        (copy / file.name).write_bytes(file.read_bytes())
    first, same = new_encoder(), Encoder(copy, store.directory.path)
    for encoder in (first, same):
        encoder.ask(1)
    (copy / "config.json").write_text((copy / "config.json").read_text() + "\n")
    other = Encoder(copy, store.directory.path)
    other.ask(1)
    assert (sum(first.encoded), same.encoded, sum(other.encoded)) == (1, [], 1)
    rows = known_names(store.directory.path)
    assert {part for part, _, _ in differences(rows[first.shared.name], rows[other.shared.name])} == {"model.files"}
    for encoder in (same, other):
        encoder.close()


def test_an_item_of_unknown_values_goes_to_lmdeploy(new_encoder: NewEncoder) -> None:
    encoder, alone = new_encoder(), new_encoder(installs=False)
    preprocess = encoder.own.model.preprocess

    def with_an_object(messages: list[dict[str, object]]) -> list[dict[str, object]]:
        messages = preprocess(messages)
        for item in items_in(messages):
            item["processor"] = object()
        return messages

    encoder.own.model.preprocess = with_an_object
    assert equal(encoder.ask(1), alone.ask(1))
    assert equal(encoder.ask(1), alone.ask(1))
    assert sum(encoder.encoded) == 1


def test_the_pages_file_installs_the_adapter(monkeypatch: pytest.MonkeyPatch) -> None:
    (block,) = code(REPOSITORY / "docs" / "hosts" / "lmdeploy.md", "py")
    monkeypatch.setattr(engine.ImageEncoder, "async_infer", OWN_INFER)
    exec(compile(block, "lmdeploy.md", "exec"), {})
    assert engine.ImageEncoder.async_infer is not OWN_INFER


def test_requests_that_come_together_get_their_own_embeddings(new_encoder: NewEncoder) -> None:
    encoder, alone = new_encoder(), new_encoder(installs=False)

    async def ask_all() -> list[Any]:
        return await asyncio.gather(*(encoder.request(each, each + 1) for each in range(6)))

    for request, found in enumerate(asyncio.run(ask_all())):
        assert equal(found["input_embeddings"], alone.ask(request, request + 1))
