"""KV events of a real service: who only listens knows what the engine will hit."""

from __future__ import annotations

from pathlib import Path

import msgspec
import zmq

from mmcached.cache.hashing.block_hash import DIGEST_BYTES, extend_block_hashes
from mmcached.client import Client
from mmcached.engine import Request
from mmcached.wire.kv_events_config import KVEventsConfig
from mmcached.wire.messages.kv_events import (
    END_OF_REPLAY,
    NUMBER_BYTES,
    BlockRemoved,
    BlockStored,
    KVEvent,
    KVEventBatch,
    salt_name,
)
from mmcached.wire.paths import RunDir
from mmcached.wire.vocabulary import BEGIN_TOKEN_ID
from tests.engine.kv.event_reader import Reader, digests_of
from tests.integration.local_service import LocalService
from tests.integration.processes import eventually, small_config
from tests.integration.workloads import photo

BLOCK = 4
TENANT = "a tenant"
SYSTEM = "You are a helpful assistant that answers in verse. "
TURNS = [SYSTEM + turn for turn in ("Who are you?", "Who are you? I ask again.", "Where?", "Who are you?")]


class Router:
    """A reader of events that foretells hits; it asks for all batches that it has not read."""

    def __init__(self, socket: zmq.Socket[bytes]) -> None:
        self.socket = socket
        self.reader = Reader()
        self.events: list[KVEvent] = []
        self.next_number = 0

    def listen(self) -> set[tuple[int | None, object]]:
        self.socket.send_multipart([b"", self.next_number.to_bytes(NUMBER_BYTES, "big")])
        while True:
            assert self.socket.poll(60_000), "a replay does not end"
            _, _, number, payload = self.socket.recv_multipart()
            if number == END_OF_REPLAY:
                break
            self.next_number = int.from_bytes(number, "big") + 1
            batch = msgspec.msgpack.decode(payload, type=KVEventBatch)
            self.reader.apply(batch.events)
            self.events += batch.events
        return {*self.reader.known}

    def foretell(self, prompt: str, tenant: str) -> int:
        """Return how many tokens of a prompt the engine will have cached."""
        token_ids = [BEGIN_TOKEN_ID, *prompt.encode()]
        request = Request(0, "generate", token_ids, [], max_tokens=1, tenant=tenant)
        extend_block_hashes(request, BLOCK)
        usable = request.block_hashes[: (len(token_ids) - 1) // BLOCK]
        is_known = [(0, digest) in self.reader.known for digest in usable]
        return BLOCK * [*is_known, False].index(False)


def published(service: LocalService) -> set[tuple[int | None, object]]:
    """Return what the engine's pool can find."""
    pool = service.engine._scheduler.kv_cache_manager.block_pool
    keys = map(pool.block_key, range(pool.num_blocks))
    return {(0, key[:DIGEST_BYTES]) for key in keys if key is not None}


def test_who_listens_knows_what_the_engine_will_hit(run_dir: Path) -> None:
    config = small_config(
        world_size=1,
        block_size=BLOCK,
        num_kv_blocks=46,
        max_model_len=180,
        max_num_batched_tokens=32,
        kv_events=KVEventsConfig(enable_kv_cache_events=True),
    )
    config.save(RunDir(run_dir).config)
    tenants = ["", TENANT]
    with (
        LocalService(run_dir, config) as service,
        zmq.Context() as context,
        context.socket(zmq.DEALER) as socket,
        Client(run_dir) as plain,
        Client(run_dir, tenant=TENANT) as salted,
    ):
        socket.connect(config.kv_events.addresses(run_dir)[1])
        router = Router(socket)
        hits = []
        for turn in [*TURNS, *reversed(TURNS)]:
            for client, tenant in zip((plain, salted), tenants, strict=True):
                eventually(router.listen, lambda known: known == published(service), "what can be found is told")
                foretold = router.foretell(turn, tenant)
                answer = client.generate(turn, max_tokens=6)
                assert answer.num_cached_tokens == foretold
                hits.append(foretold)
        assert len(set(hits)) > 3, "all, some and nothing was cached"
        plain.generate("<image> and <image>", [photo(0), photo(1)], max_tokens=1)
        eventually(router.listen, lambda known: known == published(service), "what can be found is told")

        stored = [event for event in router.events if isinstance(event, BlockStored)]
        assert any(event.extra_keys for event in stored)
        assert any(isinstance(event, BlockRemoved) for event in router.events)
        for event in stored:
            assert digests_of(event, {salt_name(TENANT): TENANT}) == event.block_hashes
        assert router.reader.known
        plain.flush()
        eventually(router.listen, lambda known: known == set(), "a flush is told")
