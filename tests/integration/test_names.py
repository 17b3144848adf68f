"""Media by name, end to end: one download and one decoding for many, the same answers without the file, and no wrong
or hung answer when the store, the frontend or the caller that fetches is killed between name, lease and use.
"""

from __future__ import annotations

import asyncio
import os
import signal
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from mmcached.cli.serve.child_service import ChildService
from mmcached.client import AsyncClient, CacheMiss, Client, Clip, Generation, MediaName, Url, Video, media_key
from mmcached.wire.errors import MmcachedError
from tests.integration import names_child
from tests.integration.json_child import JsonChild
from tests.integration.local_service import LocalService
from tests.integration.lone_frontend import LoneFrontend
from tests.integration.processes import DEADLINE_S, eventually, role_pids, small_config
from tests.integration.test_bit_identical import MODES, base, quiet_stats
from tests.integration.workloads import film, photo
from tests.present import present

PROMPT = "what is <image> beside <image>?"
CHILD = Path(names_child.__file__)
NUM_AT_ONCE = 64
URL = Url("http://host/cat.png", '"1"')


@contextmanager
def unopened(path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Fail whoever opens a file."""

    def refuse(file: Any, *values: Any, **named: Any) -> Any:
        assert file != path
        return open_file(file, *values, **named)

    open_file = os.open
    with monkeypatch.context() as patched:
        patched.setattr(os, "open", refuse)
        yield


@pytest.mark.parametrize("mode", MODES)
def test_a_named_picture_is_answered_without_its_file(
    mode: str, run_dir: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "cat.png"
    path.write_bytes(photo(0))
    os.utime(path)
    with LocalService(run_dir, base(world_size=1, **MODES[mode])), Client(run_dir) as client:
        wanted = client.generate(PROMPT, [photo(0), photo(1)], hidden_states=True)
        embeddings = client.encode([photo(0), photo(1)])
        with pytest.raises(CacheMiss) as caught:
            client.generate(PROMPT, [photo(0), None], names=[None, "dog"])
        assert caught.value.mm_hashes == ["dog"]
        eventually(lambda: (client.bind(path), client.resolve(path))[1], lambda found: found is not None, "settled")
        client.bind("dog", photo(1))
        names: list[MediaName] = [path, "dog"]
        if mode == "off":
            with pytest.raises(CacheMiss) as caught:
                client.encode([path, None], names=names)
            assert caught.value.mm_hashes == ["dog"]
            encoded = client.encode([path, photo(1)], names=names)
            assert all(torch.equal(ours, theirs) for ours, theirs in zip(encoded, embeddings, strict=True))
            return
        before = client.stats().processor
        with unopened(path, monkeypatch):
            named = client.generate(PROMPT, [path, None], names=names, hidden_states=True)
            encoded = client.encode([path, None], names=names)
            *_, streamed = client.generate_stream(PROMPT, [path, None], names=names)
        assert named.tokens == wanted.tokens
        assert torch.equal(named.hidden_states, wanted.hidden_states)  # type: ignore[arg-type]
        assert all(torch.equal(ours, theirs) for ours, theirs in zip(encoded, embeddings, strict=True))
        assert isinstance(streamed, Generation)
        assert streamed.tokens == wanted.tokens
        assert quiet_stats(run_dir).processor.items_processed == before.items_processed
        client.flush()
        digest = client.bind("dog", photo(1))
        client.put(media_key(digest), {"file": np.frombuffer(photo(3), np.uint8)})  # forged
        with pytest.raises(CacheMiss) as caught:
            client.generate(PROMPT, [path, None], names=names)
        assert caught.value.mm_hashes == ["dog"]
        with pytest.raises(CacheMiss) as caught:
            list(client.generate_stream(PROMPT, [path, None], names=names))
        assert caught.value.mm_hashes == ["dog"]
        client.drop(media_key(digest))
        client.bind("dog", photo(1), keeps_file=True)
        again = client.generate(PROMPT, [path, None], names=names)
        assert again.tokens == wanted.tokens, "the store had kept one file, and the caller had given the other"


def test_a_named_film_is_answered_without_its_file(run_dir: Path) -> None:
    with LocalService(run_dir, base(world_size=1)), Client(run_dir) as client:
        window = Video(film(0), fps=2.0, end_s=2.0)
        (wanted,) = client.encode(videos=[window])
        client.bind("film", film(0))
        (named,) = client.encode(videos=[Video(None, fps=2.0, end_s=2.0)], names=["film"])
        assert isinstance(named, Clip)
        assert torch.equal(named.joined(), wanted.joined())
        with pytest.raises(CacheMiss) as caught:
            client.encode([photo(0)], videos=[Video(None, fps=1.0)], names=["cat", "film"])
        assert caught.value.mm_hashes == ["film"]
        client.bind("film", film(0), keeps_file=True)
        _, other = client.encode([photo(0)], videos=[Video(None, fps=1.0)], names=["cat", "film"])
        assert torch.equal(other.joined(), client.encode(videos=[Video(film(0), fps=1.0)])[0].joined())


@pytest.mark.parametrize("mode", ["shm", "lru"])
def test_many_that_ask_at_once_for_a_new_url_download_and_decode_once(mode: str, run_dir: Path) -> None:
    downloads: list[int] = []

    async def download() -> bytes:
        downloads.append(1)
        await asyncio.sleep(0)
        return photo(2)

    async def ask(client: AsyncClient) -> Any:
        await client.bind(URL, download, keeps_file=True, ttl_s=600)
        (output,) = await client.encode([None], names=[URL])
        return output

    async def ask_all() -> list[Any]:
        async with AsyncClient(run_dir) as first, AsyncClient(run_dir) as second:
            return await asyncio.gather(*(ask((first, second)[number % 2]) for number in range(NUM_AT_ONCE)))

    with LocalService(run_dir, base(world_size=1, **MODES[mode]), saves_outputs=True), Client(run_dir) as client:
        before = client.stats().processor.items_processed
        outputs = asyncio.run(ask_all())
        assert len(downloads) == 1
        assert client.stats().processor.items_processed == before + 1
        assert all(torch.equal(output, outputs[0]) for output in outputs)


@pytest.fixture
def frontend(run_dir: Path) -> Iterator[LoneFrontend]:
    with LoneFrontend(run_dir, small_config(world_size=0)) as running:
        yield running


def test_the_store_dies_between_name_lease_and_use(frontend: LoneFrontend, run_dir: Path) -> None:
    record = {"embeds": np.arange(100_000)}
    with Client(run_dir) as client, Client(run_dir) as other:
        digest = client.bind("cat", photo(0), keeps_file=True)
        assert client.put(f"output/{digest}", record)
        frontend.kill()  # between bind and resolve: both are found
        found = present(client.resolve("cat", lambda content: f"output/{content}", view=True, tensors="numpy"))
        hit = present(found.hit)
        frontend.start()  # adopts the ring and the lease
        assert other.drop(f"output/{digest}")
        assert other.forget("cat")
        frontend.kill()  # between lease and use
        opened = present(other.open(present(hit.token), tensors="numpy"))
        assert np.array_equal(opened["embeds"], record["embeds"])
        assert np.array_equal(hit["embeds"], record["embeds"])
        assert client.resolve("cat") is None
        with Client(run_dir, timeout_s=DEADLINE_S) as third:
            assert third.bind("cat", lambda: photo(1)) != digest, "without a service it is fetched, and not bound"
        frontend.start()
        assert client.resolve("cat") is None
        kept = client.get(media_key(digest), tensors="numpy")
        assert present(kept)["file"].tobytes() == photo(0)
        assert client.bind("cat", lambda: photo(0)) == digest
        assert present(client.resolve("cat")).content == digest


def test_the_caller_that_fetches_dies_and_another_fetches(frontend: LoneFrontend, run_dir: Path) -> None:
    with fetching(run_dir) as first, fetching(run_dir) as second:
        for child in (first, second):
            child.hear()
        first.tell()
        assert first.hear() == {"fetching": True}
        second.tell()
        eventually(lambda: frontend.stats().store.waiting, lambda waiting: waiting == 1, "the second waits")
        first.kill()
        assert second.hear() == {"fetching": True}
        second.tell()
        heard = second.hear()
    with Client(run_dir) as client:
        assert present(client.resolve("cat", media_key)).content == heard["content"]


def test_the_frontend_dies_while_callers_wait_for_a_fetch(frontend: LoneFrontend, run_dir: Path) -> None:
    with fetching(run_dir) as first, fetching(run_dir) as second:
        for child in (first, second):
            child.hear()
        first.tell()
        assert first.hear() == {"fetching": True}
        second.tell()
        eventually(lambda: frontend.stats().store.waiting, lambda waiting: waiting == 1, "the second waits")
        frontend.kill()
        assert second.hear() == {"fetching": True}, "it waits for nobody any more"
        for child in (first, second):
            child.tell()
        answers = [child.hear()["content"] for child in (first, second)]
        assert answers[0] == answers[1]
        frontend.start()
    with Client(run_dir) as client:
        assert client.bind("cat", lambda: names_child.FILE) == answers[0]


@contextmanager
def fetching(run_dir: Path) -> Iterator[JsonChild]:
    child = JsonChild(CHILD, run_dir)
    try:
        yield child
    finally:
        child.kill()


def test_roles_are_killed_in_traffic_by_name(run_dir: Path, tmp_path: Path) -> None:
    """Each answer is right, or may be asked again; soon after each kill all are right again, without any file."""
    settings = small_config(world_size=1, restart_backoff_s=0.01, max_restarts=100)
    with ChildService(run_dir / "s", settings, tmp_path / "config.json") as service:
        with Client(service.run_dir) as client:
            wanted = client.generate(PROMPT, [photo(0), photo(1)]).tokens
            for name, index in (("cat", 0), ("dog", 1)):
                client.bind(name, photo(index), keeps_file=True)
        counts = asyncio.run(Traffic(service, wanted).run(("frontend", "engine")))
    assert counts["wrong"] == 0, counts
    assert counts["right"] > 0


class Traffic:
    """Clients that ask for two named pictures without a pause, while roles of their service are killed."""

    def __init__(self, service: ChildService, wanted: list[int]) -> None:
        self._service = service
        self._wanted = wanted
        self._counts: Counter[str] = Counter()
        self._is_over = False

    async def run(self, roles: Sequence[str]) -> Counter[str]:
        tasks = [asyncio.create_task(self._ask()) for _ in range(4)]
        for role in roles:
            await self._are_right()
            (pid,) = role_pids(self._service.process.pid)[role]
            os.kill(pid, signal.SIGKILL)
        await self._are_right()
        self._is_over = True
        await asyncio.wait_for(asyncio.gather(*tasks), DEADLINE_S)
        return self._counts

    async def _are_right(self) -> None:
        """Return when some answers more are right."""
        goal, give_up = self._counts["right"] + 8, time.monotonic() + DEADLINE_S
        while self._counts["right"] < goal:
            assert time.monotonic() < give_up, self._counts
            await asyncio.sleep(0.01)  # between two looks: only politeness

    async def _ask(self) -> None:
        async with AsyncClient(self._service.run_dir) as client:
            while not self._is_over:
                try:
                    answer = await client.generate(PROMPT, [None, None], names=["cat", "dog"], timeout_s=DEADLINE_S)
                except MmcachedError as error:
                    self._counts[error.code if error.retryable else "wrong"] += 1
                    await asyncio.sleep(0.01)
                else:
                    self._counts["right" if answer.tokens == self._wanted else "wrong"] += 1
