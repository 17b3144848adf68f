"""Measures the cost of the writer's operations as readers and slots grow, in one process: nobody waits for anybody.

Chunks are so small that slot ids run out first: every claim evicts one. In the rows with pins, every 20th chunk is
leased for as long as the measurement lasts.
"""

from __future__ import annotations

import contextlib
import itertools
import statistics
from dataclasses import dataclass
from functools import partial
from typing import Self

import torch

from mmcached.shm import ObjectStoreWriter, ReaderEntry, RingWriter
from mmcached.wire.handle import Handle
from scripts.bench.harness import Call, Row, Sampler, against_first, compare, wall_us

NUM_READERS = (1, 2, 4, 8, 16)
NUM_SLOTS = (1024, 4096, 16384)
USUAL_ROWS = 4
USUAL_SLOTS = 4096
ITEM_BYTES = 64
CHUNK_BYTES = 512
SAMPLES = 200
PINNED_EVERY = 20


@dataclass(slots=True)
class Subject:
    """A full ring with attached readers."""

    store: ObjectStoreWriter
    readers: list[ReaderEntry]
    handle: Handle
    keys: itertools.count[int]
    item: torch.Tensor

    @classmethod
    def make(cls, undo: contextlib.ExitStack, *, num_readers: int, num_slots: int, has_pins: bool) -> Self:
        data_bytes = CHUNK_BYTES * num_slots
        ring = RingWriter.create(
            data_bytes=data_bytes, num_slots=num_slots, max_readers=num_readers, max_object_bytes=data_bytes // 2
        )
        store = undo.enter_context(ObjectStoreWriter(ring))
        readers = [undo.enter_context(ReaderEntry.attach(ring.announcement)) for _ in range(num_readers)]
        for each in readers:
            if not ring.attach(each.reader_id, each.incarnation):
                raise RuntimeError(f"reader {each.reader_id} was not attached")
        item = torch.zeros(ITEM_BYTES // 4)
        keys = itertools.count()
        for index in range(num_slots):
            handle = store.put(str(next(keys)), {"x": item})
            if has_pins and index % PINNED_EVERY == 0:
                ring.grant(readers[-1].reader_id, handle)
        return cls(store, readers, handle, keys, item)

    def put(self) -> None:
        self.handle = self.store.put(str(next(self.keys)), {"x": self.item})

    def claim(self) -> None:
        ring = self.store.ring
        ring.abort(ring.claim(ITEM_BYTES))

    def grant(self) -> None:
        self.store.ring.grant(self.readers[0].reader_id, self.handle)

    def give_back(self) -> None:
        self.readers[0].give_back(self.handle)

    def is_leased(self) -> None:
        self.store.ring.is_leased(self.handle)


def growth(num_rounds: int) -> list[Row]:
    """Cost per operation for 1–16 readers and 1k–16k slots, each against the smallest."""
    by_readers = {f"{readers} readers": (readers, USUAL_SLOTS, False) for readers in NUM_READERS}
    by_slots = {f"{slots:,} slots": (USUAL_ROWS, slots, False) for slots in NUM_SLOTS}
    pinned = {f"{slots:,} slots, 5 % leased": (USUAL_ROWS, slots, True) for slots in NUM_SLOTS}
    return [each for family in (by_readers, by_slots, pinned) for each in _one_family(family, num_rounds)]


def _one_family(family: dict[str, tuple[int, int, bool]], num_rounds: int) -> list[Row]:
    with contextlib.ExitStack() as undo:
        samplers = {
            (name, params): sampler
            for params, (num_readers, num_slots, has_pins) in family.items()
            for name, sampler in _costs_us(
                Subject.make(undo, num_readers=num_readers, num_slots=num_slots, has_pins=has_pins)
            ).items()
        }
        figures = compare(samplers, num_rounds, num_unmeasured=0)
    names = dict.fromkeys(name for name, _ in figures)
    return [
        each
        for name in names
        for each in against_first(f"cost of {name}", "us", {params: figures[name, params] for params in family})
    ]


def _costs_us(subject: Subject) -> dict[str, Sampler]:
    return {
        "evicting put": partial(_median_us, subject.put),
        "grant": partial(_median_us, subject.grant, subject.give_back),
        "pinned check": partial(_median_us, subject.is_leased),
        "claim and abort": partial(_median_us, subject.claim),
    }


def _median_us(run: Call, afterwards: Call | None = None) -> float:
    samples = []
    for _ in range(SAMPLES):
        samples.append(wall_us(run))
        if afterwards is not None:
            afterwards()
    return statistics.median(samples)
