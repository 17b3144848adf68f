"""SGLang's own processor of Qwen2.5-VL with the store behind its cache: the same items, and no picture made twice."""

from __future__ import annotations

import asyncio
import base64
import hashlib
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from sglang.srt.managers.schedule_batch import MultimodalDataItem
from sglang.srt.multimodal.media_artifacts.base import MediaArtifactCacheMixin
from sglang.srt.multimodal.processors.llava import LlavaImageProcessor
from sglang.srt.utils import ImageData

from mmcached.client import Client
from mmcached.integrations.processed_inputs import item_saver
from mmcached.integrations.sglang import processed_inputs
from mmcached.integrations.sglang.processed_inputs import share
from tests.hosts.prompts import image
from tests.hosts.sglang.conftest import DEADLINE_S
from tests.hosts.sglang.gloo_rank import broadcast, digest_of
from tests.hosts.sglang.processing import IMAGE, Server
from tests.integration.lone_frontend import LoneFrontend

Output = Any

Make = Callable[..., Server]


@pytest.fixture
def make(checkpoint: Path, published: Callable[..., None], store: LoneFrontend) -> Iterator[Make]:
    """Return what makes a server; `shared=False`: SGLang alone, with room in its own cache unless told otherwise."""
    servers: list[Server] = []

    def make(*, shared: bool = True, **changed: Any) -> Server:
        published(**changed)
        server = Server(checkpoint)
        servers.append(server)
        if shared:
            server.share(store.directory.path)
        return server

    yield make
    for server in servers:
        server.close()


def picture(number: int) -> str:
    url: str = image(number)["image_url"]["url"]
    return url


def file_of(number: int, folder: Path) -> tuple[Path, str]:
    """Return a file with a picture, and the digest by which SGLang knows its content."""
    content = base64.b64decode(picture(number).partition(",")[2])
    path = folder / f"{number}.png"
    path.write_bytes(content)
    return path, f"sha256:{hashlib.sha256(content).hexdigest()}"


def same(one: Output, other: Output) -> bool:
    """Whether ranks get the same: tokens, positions, and items with equal hashes and tensors."""
    if list(one.input_ids) != list(other.input_ids) or not torch.equal(one.mrope_positions, other.mrope_positions):
        return False
    return len(one.mm_items) == len(other.mm_items) and all(map(same_item, one.mm_items, other.mm_items))


def same_item(one: MultimodalDataItem, other: MultimodalDataItem) -> bool:
    grids = [item.model_specific_data["image_grid_thw"] for item in (one, other)]
    return one.hash == other.hash and torch.equal(one.feature, other.feature) and torch.equal(*grids)


def test_a_picture_is_processed_once_by_all_servers(make: Make) -> None:
    alone = make(shared=False, mm_preprocess_cache_size_mb=16)
    first, second = make(), make()
    said = alone.run(picture(1), picture(2))
    assert same(first.run(picture(1), picture(2)), said)
    assert same(second.run(picture(1), picture(2)), said)
    assert same(second.run(picture(2), picture(2), picture(1)), alone.run(picture(2), picture(2), picture(1)))
    assert (alone.num_processed, first.num_processed, second.num_processed) == (2, 2, 0)


def test_pixels_are_what_sglang_makes_without_any_cache(make: Make) -> None:
    alone, shared = make(shared=False), make()
    shared.run(picture(1))
    one, other = alone.run(picture(1)), shared.run(picture(1))
    assert list(one.input_ids) == list(other.input_ids)
    assert torch.equal(one.mm_items[0].feature, other.mm_items[0].feature)
    assert (alone.num_processed, shared.num_processed) == (1, 1)


def test_servers_that_ask_at_once_process_a_picture_once(make: Make) -> None:
    servers = [make(), make()]

    async def ask() -> list[Output]:
        fields = SimpleNamespace(rid="x", video_data=None, audio_data=None, mm_content_hashes=None)
        calls = [
            server.mm_processor.process_mm_data_async(
                [picture(number) for number in numbers], IMAGE * 2 + "what", fields, max_req_input_len=4096
            )
            for server, numbers in zip(servers * 2, [(1, 2), (2, 1), (2, 1), (1, 2)], strict=True)
        ]
        return await asyncio.wait_for(asyncio.gather(*calls), DEADLINE_S)

    one, other, *_ = asyncio.run(ask())
    assert sum(server.num_processed for server in servers) == 2
    assert same_item(one.mm_items[0], other.mm_items[1])


def test_other_options_of_the_processor_have_other_artifacts(make: Make) -> None:
    make().run(picture(1))
    smaller = make(mm_process_config={"image": {"size": {"shortest_edge": 784, "longest_edge": 28 * 28 * 4}}})
    smaller.run(picture(1))
    assert smaller.num_processed == 1


def test_other_files_of_the_processor_have_other_artifacts(make: Make, checkpoint: Path, tmp_path: Path) -> None:
    make().run(picture(1))
    for file in checkpoint.iterdir():
        (tmp_path / file.name).symlink_to(file)
    names = [name for name in ("preprocessor_config.json", "processor_config.json") if (checkpoint / name).exists()]
    changed = tmp_path / names[0]
    content = changed.read_bytes()
    changed.unlink()
    changed.write_bytes(content + b"\n")
    other = make(tokenizer_path=str(tmp_path))
    other.run(picture(1))
    assert other.num_processed == 1


def test_a_trusted_content_hash_names_a_file_that_is_not_opened(make: Make, tmp_path: Path) -> None:
    path, digest = file_of(1, tmp_path)
    first = make(trust_mm_content_hashes=True)
    said = first.run(str(path), mm_content_hashes=[digest])
    first.drain()
    path.unlink()
    second = make(trust_mm_content_hashes=True)
    assert same(second.run(str(path), mm_content_hashes=[digest]), said)
    assert second.num_processed == 0


def test_a_content_hash_that_is_not_trusted_is_checked(make: Make, tmp_path: Path) -> None:
    make().run(picture(1))
    path, _ = file_of(2, tmp_path)
    _, digest = file_of(1, tmp_path)
    with pytest.raises(ValueError, match="content hash mismatch"):
        make().run(str(path), mm_content_hashes=[digest])


@pytest.mark.filterwarnings("ignore:The given NumPy array is not writable")  # in SGLang's broadcast
def test_ranks_agree_on_a_hit(make: Make, store: LoneFrontend, tmp_path: Path) -> None:
    """One process looks up, before SGLang's broadcast to the ranks: these get tensors, and need no store."""
    make().run(picture(1))
    server = make()
    found = server.run(picture(1))
    assert server.num_processed == 0
    store.kill()
    meeting = str(tmp_path / "meeting")
    words = [sys.executable, "-W", "ignore", "-m", "tests.hosts.sglang.gloo_rank", meeting]
    with subprocess.Popen(words, stdout=subprocess.PIPE, text=True) as rank:
        try:
            (kept,) = broadcast(0, meeting, [found])
            received, _ = rank.communicate(timeout=DEADLINE_S)
        finally:
            rank.kill()
    assert received.split()[-1] == digest_of(kept) == digest_of(found)
    store.start()


def test_a_dead_store_changes_no_answer(make: Make, store: LoneFrontend) -> None:
    alone = make(shared=False, mm_preprocess_cache_size_mb=16)
    said = alone.run(picture(1), picture(2))
    make().run(picture(1))
    server = make()
    held = server.run(picture(1), picture(2))
    store.kill()
    assert same(held, said)
    assert same(server.run(picture(1), picture(2)), said)
    assert same(make().run(picture(1), picture(2)), said)
    store.start()
    assert same(server.run(picture(1), picture(2)), said)


def test_a_store_that_dies_while_a_picture_is_processed(make: Make, store: LoneFrontend) -> None:
    said = make(shared=False, mm_preprocess_cache_size_mb=16).run(picture(1))
    server = make()
    prepare = server.mm_processor.prepare_artifact_batch

    def kill_and_prepare(entries: list[Any], **named: Any) -> Any:
        store.kill()
        return prepare(entries, **named)

    server.mm_processor.prepare_artifact_batch = kill_and_prepare
    assert same(server.run(picture(1)), said)
    store.start()


def stop_before_processing(server: Server, store: LoneFrontend) -> None:
    """Stop the store when this server has a claim, before it processes."""
    prepare = server.mm_processor.prepare_artifact_batch

    def stop_and_prepare(entries: list[Any], **named: Any) -> Any:
        os.kill(store.process.pid, signal.SIGSTOP)
        return prepare(entries, **named)

    server.mm_processor.prepare_artifact_batch = stop_and_prepare


def test_the_answer_does_not_wait_for_the_store(
    make: Make, store: LoneFrontend, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(item_saver, "PUT_S", DEADLINE_S)
    said = make(shared=False, mm_preprocess_cache_size_mb=16).run(picture(1))
    server, other = make(), make()
    stop_before_processing(server, store)
    try:
        assert same(server.run(picture(1)), said)
        assert server.artifacts is not None
        assert not server.artifacts.drain(0), "the store has not answered"
        assert same(server.run(picture(1)), said)
        assert server.num_processed == 1
    finally:
        os.kill(store.process.pid, signal.SIGCONT)
    server.drain()
    assert same(other.run(picture(1)), said)
    assert other.num_processed == 0


def test_a_store_that_is_killed_during_a_put(make: Make, store: LoneFrontend) -> None:
    """What it has not kept stays in the process, as SGLang keeps it."""
    said = make(shared=False, mm_preprocess_cache_size_mb=16).run(picture(1))
    server = make(mm_preprocess_cache_size_mb=16)
    stop_before_processing(server, store)
    assert same(server.run(picture(1)), said)
    store.kill()
    server.drain()
    assert len(server.mm_processor.mm_preprocess_cache) == 1
    assert same(server.run(picture(1)), said)
    assert server.num_processed == 1
    store.start()
    assert same(make().run(picture(1)), said)


def test_a_server_that_ends_leaves_its_pictures_to_others(
    make: Make, store: LoneFrontend, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(item_saver, "DELAY_S", DEADLINE_S)
        server = make()
    said = server.run(picture(1))
    assert server.artifacts is not None
    server.artifacts.close()
    other = make()
    assert same(other.run(picture(1)), said)
    assert other.num_processed == 1


def test_records_of_another_form_are_misses(make: Make, store: LoneFrontend) -> None:
    first = make()
    said = first.run(picture(1))
    first.drain()
    with Client(store.directory.path, fail_open=False) as client:
        for key in [key for key in client.keys("processed-item/*") if key.endswith("/counts")]:
            client.put(key, {"class": "os:system", "values": {}}, overwrite=True)
    server = make()
    assert same(server.run(picture(1)), said)
    assert server.num_processed == 1


def test_an_artifact_that_is_shared_is_not_kept_as_well(make: Make, store: LoneFrontend) -> None:
    server = make(mm_preprocess_cache_size_mb=16)
    server.run(picture(1))
    assert len(server.mm_processor.mm_preprocess_cache) == 0
    store.kill()
    server.run(picture(1))
    server.run(picture(1))
    assert server.num_processed <= 2, "kept as SGLang does, while nothing is shared"
    store.start()


def test_an_artifact_without_a_plain_form_is_left_to_sglang(make: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(processed_inputs, "_is_plain", lambda value: False)
    first, second = make(), make(mm_preprocess_cache_size_mb=16)
    said = first.run(picture(1))
    for _ in range(2):
        assert same(second.run(picture(1)), said)
    assert (first.num_processed, second.num_processed) == (1, 1)


def test_a_picture_that_cannot_be_decoded_fails_as_in_sglang(make: Make) -> None:
    alone, server = make(shared=False, mm_preprocess_cache_size_mb=16), make()
    broken = f"data:image/png;base64,{base64.b64encode(b'no picture').decode()}"
    for each in (alone, server):
        with pytest.raises(Exception) as raised:  # noqa: PT011 (whatever SGLang raises)
            each.run(ImageData(url=broken))
        errors = str(raised.value)
        assert errors
    assert len(server.run(picture(1)).mm_items) == 1


def test_a_processor_that_keeps_no_artifacts_is_left_alone(
    store: LoneFrontend, caplog: pytest.LogCaptureFixture
) -> None:
    assert not issubclass(LlavaImageProcessor, MediaArtifactCacheMixin)
    processor = LlavaImageProcessor.__new__(LlavaImageProcessor)
    with Client(store.directory.path) as client:
        assert share(processor, client) is None
    assert "processed inputs are not shared: LlavaImageProcessor does not keep" in caplog.text
