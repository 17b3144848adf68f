"""Items whose tiles are encoded apart: which tiles are looked up, encoded, saved; tower and store are stand-ins."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest
import torch

from mmcached.cache.store_keys import EMBEDDINGS, output_key
from mmcached.shm.store.codec import encode
from mmcached.wire.errors import InvalidRequest
from mmcached.wire.limits import LimitsConfig
from mmcached.wire.messages.parts import EncoderForm, Inline, StoredOutput, TensorForm
from mmcached.wire.messages.worker import EmitEmbedding, EncodeItem
from mmcached.wire.sockets.frames import Frame
from mmcached.worker.encoders.encoder import MeasuredForm, Outputs
from mmcached.worker.payloads import CALL_S
from mmcached.worker.steps import runner as runners
from mmcached.worker.steps import tile_outputs
from mmcached.worker.steps.runner import ModelRunner
from mmcached.worker.stored_outputs import StoredOutputs
from tests.worker.plans import plan
from tests.worker.steps.test_runner import CONFIG, CPU, run, run_failing

WIDTH, PER_TILE = 8, 2
FINGERPRINT = "f" * 32


class Tower:
    """A `TileEncoder` of tiles (1, 1, 2, 8): their numbers, tripled; 99 is no tile that it takes."""

    rows = None
    fingerprint = FINGERPRINT
    tile_embeds = PER_TILE

    def __init__(self) -> None:
        self.encoded: list[int] = []

    def encode(self, record: Mapping[str, Any], num_embeds: int) -> Outputs:
        return self.join(record, [self.encode_tile(tile) for tile in self.split(record, num_embeds)])

    def split(self, record: Mapping[str, Any], num_embeds: int) -> list[dict[str, torch.Tensor]]:
        pixels = record["pixels"]
        return [{"pixels": pixels[:, place : place + 1]} for place in range(pixels.shape[1])]

    def encode_tile(self, tile: Mapping[str, torch.Tensor]) -> Outputs:
        number = int(tile["pixels"].flatten()[0])
        if number == 99:
            raise InvalidRequest("pixels", number, "must be no tile of zeros")
        self.encoded.append(number)
        return {EMBEDDINGS: 3 * tile["pixels"][0, 0]}

    def join(self, record: Mapping[str, Any], tiles: Sequence[Outputs]) -> Outputs:
        return {EMBEDDINGS: torch.cat([tile[EMBEDDINGS] for tile in tiles])}

    def measure(self) -> MeasuredForm:
        form = EncoderForm("stand-in", {}, [TensorForm(EMBEDDINGS, "float32", (-1, WIDTH))])
        return MeasuredForm(form, 4 * WIDTH)


class Store:
    """In the place of a client: records by tenant and key."""

    def __init__(self) -> None:
        self.records: dict[tuple[str | None, str], Any] = {}
        self.epochs: dict[tuple[str | None, str], int | None] = {}
        self.looks: list[list[str]] = []
        self.compared: list[str] = []
        self.verifies = False
        self.clock_s = 0.0
        self.takes_s = 0.0

    def get_many(
        self, keys: Sequence[str], *, view: bool, timeout_s: float, tenant: str
    ) -> list[SimpleNamespace | None]:
        assert view
        assert 0 < timeout_s <= CALL_S
        self.looks.append(list(keys))
        self.clock_s += min(self.takes_s, timeout_s)
        found = [self.records.get((tenant, key)) for key in keys]
        return [None if record is None else SimpleNamespace(record=record) for record in found]

    def get(self, key: str, *, tenant: str | None, **options: object) -> SimpleNamespace:
        return SimpleNamespace(record=self.records[tenant, key])

    def contains_many(self, keys: list[str], *, tenant: str | None, **options: object) -> list[bool]:
        return [(tenant, key) in self.records for key in keys]

    def exists(self, key: str, *, tenant: str | None) -> bool:
        return (tenant, key) in self.records

    def is_verifying(self) -> bool:
        return self.verifies

    def verified(self, key: str, found: Any, computed: Any, *, tenant: str | None) -> bool:
        self.compared.append(key)
        return torch.equal(found[EMBEDDINGS], computed[EMBEDDINGS])

    def put(self, key: str, record: object, *, tenant: str | None, store_epoch: int | None, **options: object) -> bool:
        self.records[tenant, key], self.epochs[tenant, key] = record, store_epoch
        return True

    def get_or_compute(self, key: str, fn: Any, *, tenant: str | None, **options: object) -> Any:
        if (tenant, key) not in self.records:
            self.records[tenant, key] = fn()
        return self.records[tenant, key]

    def open(self, token: str, **options: object) -> None:
        return None

    def close(self) -> None:
        pass


@pytest.fixture
def store(monkeypatch: pytest.MonkeyPatch) -> Store:
    store = Store()
    monkeypatch.setattr("mmcached.worker.steps.item_outputs.contact", lambda run_dir, **options: store)
    monkeypatch.setattr(tile_outputs, "time", SimpleNamespace(monotonic=lambda: store.clock_s))
    return store


@pytest.fixture
def tower(monkeypatch: pytest.MonkeyPatch) -> Tower:
    tower = Tower()
    monkeypatch.setattr(runners, "make_encoder", lambda *_: tower)
    return tower


def make_runner(rank: int = 0, world_size: int = 1, **limits: float) -> ModelRunner:
    config = msgspec.structs.replace(CONFIG, world_size=world_size, limits=msgspec.convert(limits, LimitsConfig))
    return ModelRunner(config, rank=rank, device=CPU, run_dir=Path("/nowhere"))


class Steps:
    """Runs steps, each with some pictures; a picture is the numbers of its tiles."""

    def __init__(self, runner: ModelRunner, tower: Tower) -> None:
        self.runner = runner
        self._tower = tower
        self._number = 0

    def encode(self, *pictures: Sequence[int], tenant: str = "t", epoch: int = 5) -> list[int]:
        """Have pictures encoded in one step, check their outputs, save; return the tiles that were encoded."""
        items, frames = self._items(pictures, tenant, epoch)
        emit = [EmitEmbedding(1, index, item.key) for index, item in enumerate(items)]
        self._tower.encoded.clear()
        output, payload = run(self.runner, plan(self._number, encode=items, emit=emit), frames)
        for made, picture in zip(output.embeddings, pictures, strict=True):
            wanted = 3.0 * torch.tensor(picture, dtype=torch.float32).repeat_interleave(PER_TILE * WIDTH)
            assert torch.equal(torch.frombuffer(bytearray(payload[made.tensor.frame]), dtype=torch.float32), wanted)
        self._save()
        return list(self._tower.encoded)

    def fail(self, *pictures: Sequence[int]) -> None:
        """Have pictures encoded in a step that fails afterwards."""
        items, frames = self._items(pictures, "t", 5)
        lost = EncodeItem("lost", "lost", PER_TILE, StoredOutput("nowhere"))
        run_failing(self.runner, plan(self._number, encode=[*items, lost]), frames)
        self._save()

    def _items(
        self, pictures: Sequence[Sequence[int]], tenant: str, epoch: int
    ) -> tuple[list[EncodeItem], list[Frame]]:
        items: list[EncodeItem] = []
        frames: list[Frame] = []
        self._number += 1
        for index, picture in enumerate(pictures):
            pixels = torch.tensor(picture, dtype=torch.float32).view(1, -1, 1, 1).expand(-1, -1, PER_TILE, WIDTH)
            own = encode({"pixels": pixels.contiguous()}).frames()
            key = f"{self._number}.{index}"
            where = Inline(len(frames), len(own))
            items.append(EncodeItem(key, key, PER_TILE * len(picture), where, tenant, epoch))
            frames += own
        return items, frames

    def _save(self) -> None:
        self.runner.save_outputs()
        if self.runner._items._outputs is not None:
            drain(self.runner)


def outputs_of(runner: ModelRunner) -> StoredOutputs:
    assert runner._items._outputs is not None
    return runner._items._outputs


def drain(runner: ModelRunner) -> None:
    """Wait until all is saved."""
    saver = outputs_of(runner)._saver
    assert saver is None or saver.drain(30.0)


def tiles_of(store: Store, tenant: str | None = "t") -> list[str]:
    return [key for of, key in store.records if of == tenant and key.startswith(output_key(FINGERPRINT, "", "tile"))]


def test_one_changed_tile_is_encoded(store: Store, tower: Tower) -> None:
    with make_runner() as runner:
        steps = Steps(runner, tower)
        assert steps.encode([1, 2, 3, 4]) == [1, 2, 3, 4]
        assert len(tiles_of(store)) == 4
        assert {store.epochs["t", key] for key in tiles_of(store)} == {5}
        assert steps.encode([1, 2, 7, 4]) == [7]
        assert steps.encode([4, 3, 2, 1]) == []
        assert [len(keys) for keys in store.looks] == [4, 4, 4], "one look for each picture"
        stats = runner.stats()
        assert (stats.tiles_encoded, stats.tiles_reused, stats.items_encoded) == (5, 7, 3)
        assert runner.encoder_cache.keys() == ["1.0", "2.0", "3.0"]


def test_equal_tiles_of_a_step_are_encoded_once_and_looked_up_once(store: Store, tower: Tower) -> None:
    with make_runner() as runner:
        steps = Steps(runner, tower)
        assert steps.encode([1, 1, 2, 1], [2, 1, 3]) == [1, 2, 3]
        assert [len(keys) for keys in store.looks] == [2, 1]
        assert len(tiles_of(store)) == 3


def test_another_tenant_finds_nothing(store: Store, tower: Tower) -> None:
    with make_runner() as runner:
        steps = Steps(runner, tower)
        for tenant in ("t", "u"):
            assert steps.encode([1, 2], tenant=tenant) == [1, 2]
        assert steps.encode([2, 1], tenant="u") == []
        items, frames = steps._items([[5, 6]], "t", 5)
        more, further = steps._items([[5, 6]], "u", 5)
        moved = msgspec.structs.replace(more[0], payload=Inline(len(frames), len(further)))
        run(runner, plan(9, encode=[*items, moved]), [*frames, *further])
        assert tower.encoded == [5, 6, 5, 6], "nor in the same step"


def test_what_is_not_saved_is_not_looked_up(store: Store, tower: Tower) -> None:
    with make_runner() as runner:
        steps = Steps(runner, tower)
        for _ in range(2):
            assert steps.encode([1, 2, 1], epoch=0) == [1, 2]
            assert steps.encode([1]) == [1], "it is its item"
    assert store.looks == []
    assert tiles_of(store) == []


def test_without_a_store_tiles_are_encoded(tower: Tower) -> None:
    with ModelRunner(msgspec.structs.replace(CONFIG, world_size=1), rank=0, device=CPU) as runner:
        steps = Steps(runner, tower)
        for _ in range(2):
            assert steps.encode([1, 2, 1], epoch=0) == [1, 2]


WRONG: dict[str, Any] = {
    "another dtype": {EMBEDDINGS: torch.zeros(PER_TILE, WIDTH, dtype=torch.float64)},
    "another width": {EMBEDDINGS: torch.zeros(PER_TILE, WIDTH + 1)},
    "another length": {EMBEDDINGS: torch.zeros(PER_TILE + 1, WIDTH)},
    "one more": {EMBEDDINGS: torch.zeros(PER_TILE, WIDTH), "more": torch.zeros(1)},
    "no tensor": {EMBEDDINGS: "two"},
    "not a number": {EMBEDDINGS: torch.full((PER_TILE, WIDTH), torch.nan)},
}


@pytest.mark.parametrize("what", WRONG)
def test_a_wrong_record_is_not_taken(store: Store, tower: Tower, what: str) -> None:
    with make_runner() as runner:
        steps = Steps(runner, tower)
        steps.encode([1, 2])
        store.records["t", tiles_of(store)[0]] = WRONG[what]
        assert steps.encode([2, 1]) == [1]


def test_while_hits_are_verified_all_tiles_are_encoded_and_compared(store: Store, tower: Tower) -> None:
    with make_runner() as runner:
        steps = Steps(runner, tower)
        steps.encode([1, 2])
        store.verifies = True
        assert steps.encode([2, 3]) == [2, 3]
        assert len(store.looks) == 1
        assert len(store.compared) == 1
        wrong = store.compared[0]
        store.records["t", wrong] = {EMBEDDINGS: torch.zeros(PER_TILE, WIDTH)}
        assert steps.encode([2, 4]) == [2, 4]
        assert store.compared == [wrong, wrong]
        assert runner.stats().outputs_refused == 1


def test_a_step_that_failed_leaves_no_tile(store: Store, tower: Tower) -> None:
    with make_runner() as runner:
        steps = Steps(runner, tower)
        steps.fail([1, 2])
        items, frames = steps._items([[1, 2, 99]], "t", 5)
        failed = run_failing(runner, plan(7, encode=items), frames)
        assert failed.error.code == InvalidRequest.code
        runner.save_outputs()
        assert store.records == {}
        assert steps.encode([1, 2]) == [1, 2]


def test_a_store_that_does_not_answer_costs_a_step_one_deadline(store: Store, tower: Tower) -> None:
    store.takes_s = 60.0
    with make_runner() as runner:
        steps = Steps(runner, tower)
        assert steps.encode([1, 2], [3, 4], [5, 6]) == [1, 2, 3, 4, 5, 6]
        assert (len(store.looks), store.clock_s) == (1, CALL_S)
        steps.encode([7, 8])
        assert (len(store.looks), store.clock_s) == (2, 2 * CALL_S)


def test_of_two_ranks_one_saves_and_both_say_the_same(store: Store, tower: Tower) -> None:
    with (
        make_runner(0, 2, min_shared_encode_ms=6e4) as first,
        make_runner(1, 2, min_shared_encode_ms=6e4) as second,
    ):
        digests = set()
        for runner in (second, first):
            outputs = outputs_of(runner)
            outputs._s_per_embed["image"].append(0.0)  # each rank encodes for itself
            items, frames = Steps(runner, tower)._items([[1, 2]], "t", 5)
            digests.add(run(runner, plan(2, encode=items), frames)[0].digest)
            runner.save_outputs()
            assert (outputs._saver is None) == (runner is second)
        assert (len(digests), tower.encoded) == (1, [1, 2, 1, 2])
        drain(first)
        assert len(tiles_of(store)) == 2


@pytest.mark.parametrize("step", [1, 2])
def test_the_rank_that_encodes_for_all_saves_the_tiles_too(store: Store, tower: Tower, step: int) -> None:
    with make_runner(0, 2, min_shared_encode_ms=0.0) as runner:
        items, frames = Steps(runner, tower)._items([[1, 2]], "t", 5)
        run(runner, plan(step, encode=items), frames)  # another rank's turn with step 1
        runner.save_outputs()
        drain(runner)
        assert (tower.encoded, len(tiles_of(store))) == ([1, 2], 2)


def test_the_time_of_a_picture_with_known_tiles_is_no_measure(store: Store, tower: Tower) -> None:
    """Else ranks would take pictures for ones that are encoded too fast to be shared."""
    with make_runner(0, 2, min_shared_encode_ms=0.0) as runner:
        steps = Steps(runner, tower)
        for number, tiles in enumerate([[1, 2], [2, 3], [3, 2]]):
            items, frames = steps._items([tiles], "t", 5)
            run(runner, plan(2 * number, encode=items), frames)
            runner.save_outputs()
            drain(runner)
        assert tower.encoded == [1, 2, 3]
        assert len(outputs_of(runner)._s_per_embed["image"]) == 1
