"""Measures the ring against its peers and memcpy: puts, hits, laps, copies, throughput, hops, growth.

put          from the writer's call until all readers, one process and one row each, hold a usable tensor
hit          the same for an item that is in the ring already
the limit    the fastest of memmove, np.copyto and Tensor.copy_ into a populated mapping, in the same run

All that is compared is open at the same time and measured in interleaved rounds, in processes that copy as those of a
service do (`PAST_CACHES`). Peers (vLLM's store, iceoryx2, Redis
on a unix socket, shared_memory + pickle) are measured where they are installed: `make bench-peers`. Without them the
limits are left. Hit rates and refusals are `eviction`'s.
"""

from __future__ import annotations

import contextlib
import itertools
import statistics
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Self

import torch

from mmcached.cli.serve.roles import PAST_CACHES
from mmcached.shm import ObjectStoreWriter, ReaderEntry, RingReader, RingWriter
from mmcached.shm.ring.lookup import Lookup
from mmcached.wire.handle import Handle
from scripts.bench import harness
from scripts.bench.harness import Bound, Call, Kind, Row, Sampler, Section, against_first, compare, row, wall_us
from scripts.bench.leases import Lease
from scripts.bench.ring_drivers import MIB, CopyLimit, Driver, Opener, drivers, interleave, make_items
from scripts.bench.ring_ours import HandOffWriterEnd, InlineWriterEnd, RingWriterEnd
from scripts.bench.ring_peers import PickleWriterEnd, PublisherEnd, RedisWriterEnd, StoreWriterEnd
from scripts.bench.ring_processes import ReaderPool, Shape

ROUNDS = 5
QUICK_ROUNDS = 2
KIB = 1024
LIMIT = "memcpy"
OURS = RingWriterEnd.name
VLLM = StoreWriterEnd.name


@dataclass(frozen=True, slots=True)
class Size:
    """An item size and how often it is measured in a round."""

    text: str
    item_bytes: int
    ring_bytes: int
    num_samples: int

    def shape(self, num_readers: int) -> Shape:
        return Shape(self.item_bytes, self.ring_bytes, num_readers)

    def params(self, num_readers: int) -> str:
        return f"{self.text}, {num_readers} reader{'s' if num_readers > 1 else ''}"


SMALL = Size("64 KiB", 64 * 1024, 32 * MIB, 60)
IMAGE = Size("4.7 MiB", 3 * 640 * 640 * 4, 128 * MIB, 20)
LARGE = Size("64 MiB", 64 * MIB, 512 * MIB, 3)
SIZES = (SMALL, IMAGE, LARGE)
READERS = (1, 2, 4)
WINDOW = 8
SMALL_SIZES = (KIB, 4 * KIB, 16 * KIB, 32 * KIB, 64 * KIB, 128 * KIB, 256 * KIB)
SMALL_RING_BYTES = 32 * MIB
SMALL_READERS = 2
SMALL_SAMPLES = 60
SMALL_WARM_UP = 200
GROWING_READERS = (1, 2, 4, 8, 16)
GROWING_SLOTS = (1024, 4096, 16384)
USUAL_ROWS = 4
USUAL_SLOTS = 4096
TINY_BYTES = 64
CHUNK_BYTES = 512
GROWTH_SAMPLES = 200
PINNED_EVERY = 20
"""One chunk of so many is leased for as long as the measurement lasts, in the rows with pins."""


def puts_and_hits(pool: ReaderPool, num_rounds: int) -> Iterator[Row]:
    for size in SIZES:
        for num_readers in READERS:
            yield from puts_and_hits_of(pool, size, num_readers, num_rounds)


def images(pool: ReaderPool, num_rounds: int) -> Iterator[Row]:
    for figure in (throughput, first_laps, private_copies):
        for num_readers in READERS:
            yield from figure(pool, IMAGE, num_readers, num_rounds)


def hits(pool: ReaderPool, num_rounds: int) -> Iterator[Row]:
    for num_readers in READERS:
        yield from hits_by_size(pool, num_readers, num_rounds)
    yield from bytes_copied(pool, LARGE, max(READERS))


def hops(pool: ReaderPool, num_rounds: int) -> Iterator[Row]:
    for size in (SMALL, IMAGE):
        yield from two_hops(pool, size, num_rounds)


def puts_and_hits_of(pool: ReaderPool, size: Size, num_readers: int, num_rounds: int) -> list[Row]:
    """put: call to last reader's tensor, against all peers and the limit; hit: the same for a stored item."""
    shape, params = size.shape(num_readers), size.params(num_readers)
    peers: list[Opener] = [RingWriterEnd, StoreWriterEnd, HandOffWriterEnd, PublisherEnd]
    slow: list[Opener] = [RedisWriterEnd, PickleWriterEnd]
    limit = CopyLimit(shape.ring_bytes, make_items(shape.item_bytes))
    with drivers(pool, shape, peers) as fast, drivers(pool, shape, slow) as others:
        for driver in (*fast, *others):
            driver.warm_up()
        runs: list[tuple[str, Callable[[], Sequence[float]]]] = []
        for driver in fast:
            runs.append((f"put {driver.end.name}", partial(driver.puts, size.num_samples)))
            if driver.end.name in (OURS, VLLM, HandOffWriterEnd.name):
                # Hits cost nothing, except where they copy.
                hits = size.num_samples if driver.end.name == VLLM else max(size.num_samples, 20)
                runs.append((f"hit {driver.end.name}", partial(driver.hits, hits)))
        runs += [(f"put {driver.end.name}", partial(driver.puts, max(1, size.num_samples // 6))) for driver in others]
        runs.append((f"put {LIMIT}", lambda: limit.measure(size.num_samples)))
        figures = interleave(runs, num_rounds)
    figures[f"put {LIMIT}"] = limit.best_us()
    return [
        row(what, params, figures[f"{what} {OURS}"], "us", peer=peer, peer_value=value)
        for name, value in figures.items()
        for what, _, peer in (name.partition(" "),)
        if peer != OURS and (what, peer) != ("put", HandOffWriterEnd.name)
    ]


def first_laps(pool: ReaderPool, size: Size, num_readers: int, num_rounds: int) -> list[Row]:
    """The first lap of a fresh ring: each page of it is written for the first time, unless it was populated."""
    shape = size.shape(num_readers)
    figures: dict[str, list[float]] = {}
    for _ in range(num_rounds):
        for opener in (RingWriterEnd, StoreWriterEnd):
            with drivers(pool, shape, [opener]) as opened:
                for driver in opened:
                    figures.setdefault(driver.end.name, []).append(statistics.median(driver.puts(shape.lap - 2)))
    medians = {name: statistics.median(values) for name, values in figures.items()}
    return against_vllm("first lap", size.params(num_readers), medians, "us")


def private_copies(pool: ReaderPool, size: Size, num_readers: int, num_rounds: int) -> list[Row]:
    """Every reader takes a copy of its own, as vLLM's always does."""
    shape = size.shape(num_readers)
    with drivers(pool, shape, [partial(RingWriterEnd, copy=True), StoreWriterEnd]) as opened:
        for driver in opened:
            driver.warm_up()
        figures = interleave([(each.end.name, partial(each.puts, size.num_samples)) for each in opened], num_rounds)
    return against_vllm("put, private copies", size.params(num_readers), figures, "us")


def throughput(pool: ReaderPool, size: Size, num_readers: int, num_rounds: int) -> list[Row]:
    """Items per second with up to WINDOW of them on their way; the limit is one memcpy after the other."""
    shape, params = size.shape(num_readers), size.params(num_readers)
    limit = CopyLimit(shape.ring_bytes, make_items(shape.item_bytes))

    def rate(driver: Driver) -> list[float]:
        return [driver.items_per_s(5 * WINDOW, WINDOW)]

    with drivers(pool, shape, [RingWriterEnd, StoreWriterEnd]) as opened:
        for driver in opened:
            driver.warm_up()
        runs: list[tuple[str, Callable[[], Sequence[float]]]] = [
            (each.end.name, partial(rate, each)) for each in opened
        ]
        runs.append((LIMIT, lambda: limit.measure(size.num_samples)))
        figures = interleave(runs, num_rounds)
    ours = figures[OURS]
    rows = against_vllm("throughput", params, figures, "items/s")
    return [*rows, row("throughput", params, ours, "items/s", peer=LIMIT, peer_value=1e6 / limit.best_us())]


def hits_by_size(pool: ReaderPool, num_readers: int, num_rounds: int) -> list[Row]:
    """A hit of a large item against one of a small item, both in our rings: it must not depend on the size."""
    with (
        drivers(pool, SMALL.shape(num_readers), [RingWriterEnd]) as (small,),
        drivers(pool, LARGE.shape(num_readers), [RingWriterEnd]) as (large,),
    ):
        runs = []
        for name, driver in ((SMALL.text, small), (LARGE.text, large)):
            driver.warm_up()
            driver.hits(len(driver.recent))  # the readers' first look at a page is a fault
            runs.append((name, partial(driver.hits, SMALL.num_samples)))
        figures = interleave(runs, num_rounds)
    ours, small_us = figures[LARGE.text], figures[SMALL.text]
    return [row("hit", LARGE.params(num_readers), ours, "us", peer=f"ours, {SMALL.text}", peer_value=small_us)]


def bytes_copied(pool: ReaderPool, size: Size, num_readers: int) -> list[Row]:
    """What a hit takes of a reader's own memory: the kernel's word, the worst of all readers."""
    shape, params = size.shape(num_readers), size.params(num_readers)
    figures: dict[str, tuple[float, float]] = {}
    with drivers(pool, shape, [RingWriterEnd, StoreWriterEnd]) as opened:
        for driver in opened:
            driver.puts(2)
            driver.hits(2)
            pool.watch_memory(num_readers, on=True)
            driver.hits(1)
            taken = pool.watch_memory(num_readers, on=False)
            figures[driver.end.name] = (max(own for own, _ in taken), max(grown for _, grown in taken))
    copied, grown = figures[OURS]
    peer = VLLM if VLLM in figures else "the item"
    peer_copied, peer_grown = figures.get(VLLM, (float(size.item_bytes), float(size.item_bytes)))
    return [
        row("copied for a hit", params, copied, "B", peer=peer, peer_value=peer_copied),
        row("reader's growth by a hit", params, grown, "B", peer=peer, peer_value=peer_grown),
    ]


def two_hops(pool: ReaderPool, size: Size, num_rounds: int) -> list[Row]:
    """P0 → engine → worker: the engine owns the row and passes the descriptor on."""
    shape, params = size.shape(1), f"{size.text}, P0 → engine → worker"
    names = {"two": "two hops", "one": "one hop"}
    two: list[Opener] = [partial(RingWriterEnd, two_hops=True), partial(StoreWriterEnd, two_hops=True)]
    with drivers(pool, shape, two) as hopping, drivers(pool, shape, [RingWriterEnd]) as (direct,):
        for driver in (*hopping, direct):
            driver.warm_up()
        runs = [(each.end.name, partial(each.puts, size.num_samples)) for each in hopping]
        runs += [(f"hit {each.end.name}", partial(each.hits, size.num_samples)) for each in hopping]
        figures = interleave([*runs, (names["one"], partial(direct.puts, size.num_samples))], num_rounds)
    hits = {name.removeprefix("hit "): value for name, value in figures.items() if name.startswith("hit ")}
    return [
        *against_vllm("put, two hops", params, figures, "us"),
        row("put, two hops", params, figures[OURS], "us", peer="ours, one hop", peer_value=figures[names["one"]]),
        *against_vllm("hit, two hops", params, hits, "us"),
    ]


def against_vllm(name: str, params: str, figures: dict[str, float], unit: str) -> list[Row]:
    """Return the row of ours against vLLM, none if vLLM is not installed."""
    if VLLM not in figures:
        return []
    return [row(name, params, figures[OURS], unit, peer=VLLM, peer_value=figures[VLLM])]


def small_items(pool: ReaderPool, num_rounds: int) -> list[Row]:
    """Put small items through the ring and inline; find the size below which inline is not slower."""
    rows = [_one_size(pool, size, num_rounds) for size in SMALL_SIZES]
    slower = [size for size, each in zip(SMALL_SIZES, rows, strict=True) if each.ratio > 1]
    threshold = 2 * max(slower, default=SMALL_SIZES[0] // 2)
    params = f"{SMALL_READERS} readers"
    item = rows[SMALL_SIZES.index(4 * KIB)]
    # What is measured to be better inline travels inline, and then costs what inline costs.
    ours = item.ours if threshold <= 4 * KIB else item.peer_value
    rows.append(row("put, ring or inline", item.params, ours, "us", peer="inline", peer_value=item.peer_value))
    return [*rows, row("inline below", params, threshold / KIB, "KiB", peer="4 KiB item", peer_value=4)]


def _one_size(pool: ReaderPool, item_bytes: int, num_rounds: int) -> Row:
    shape = Shape(item_bytes, SMALL_RING_BYTES, SMALL_READERS)
    with drivers(pool, shape, [RingWriterEnd, InlineWriterEnd]) as (ring, inline):
        runs = []
        for driver in (ring, inline):
            driver.puts(min(SMALL_WARM_UP, shape.lap))
            runs.append((driver.end.name, partial(driver.puts, SMALL_SAMPLES)))
        figures = interleave(runs, num_rounds)
    ours, peer_value = (figures[driver.end.name] for driver in (ring, inline))
    return row(
        "put", f"{item_bytes // KIB} KiB, {SMALL_READERS} readers", ours, "us", peer="inline", peer_value=peer_value
    )


@dataclass(slots=True)
class Subject:
    """A full ring with attached readers. Chunks are so small that slot ids run out first: every claim evicts one."""

    store: ObjectStoreWriter
    readers: list[ReaderEntry]
    look: Lookup
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
            if not ring.readers.attach(each.reader_id, each.incarnation):
                raise RuntimeError(f"reader {each.reader_id} was not attached")
        look = undo.enter_context(RingReader.open(ring.announcement)).look
        item = torch.zeros(TINY_BYTES // 4)
        keys = itertools.count()
        for index in range(num_slots):
            handle = store.put(str(next(keys)), {"x": item})
            if has_pins and index % PINNED_EVERY == 0:
                readers[-1].take_leases([Lease(handle)], look)
        return cls(store, readers, look, handle, keys, item)

    def put(self) -> None:
        self.handle = self.store.put(str(next(self.keys)), {"x": self.item})

    def claim(self) -> None:
        ring = self.store.ring
        ring.abort(ring.claim(TINY_BYTES))

    def take(self) -> None:
        self.readers[0].take_leases([Lease(self.handle)], self.look)

    def give_back(self) -> None:
        self.readers[0].give_back(self.handle)

    def is_leased(self) -> None:
        self.store.ring.records.is_leased(self.handle)


def growth(num_rounds: int) -> list[Row]:
    """Cost of the writer's operations for 1–16 readers and 1k–16k slots, each against the smallest, in one process."""
    by_readers = {f"{readers} readers": (readers, USUAL_SLOTS, False) for readers in GROWING_READERS}
    by_slots = {f"{slots:,} slots": (USUAL_ROWS, slots, False) for slots in GROWING_SLOTS}
    pinned = {f"{slots:,} slots, 5 % leased": (USUAL_ROWS, slots, True) for slots in GROWING_SLOTS}
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
        "take": partial(_median_us, subject.take, subject.give_back),
        "pinned check": partial(_median_us, subject.is_leased),
        "claim and abort": partial(_median_us, subject.claim),
    }


def _median_us(run: Call, afterwards: Call | None = None) -> float:
    samples = []
    for _ in range(GROWTH_SAMPLES):
        samples.append(wall_us(run))
        if afterwards is not None:
            afterwards()
    return statistics.median(samples)


def _for_readers(
    kind: Kind,
    name: str,
    size: str,
    peer: str,
    ratios: tuple[float, float, float],
    *,
    is_floor: bool = False,
) -> Iterator[Bound]:
    for readers, ratio in zip(("1 reader", "2 readers", "4 readers"), ratios, strict=True):
        yield Bound(kind, name, f"{size}, {readers}", peer, ratio, is_floor)


BOUNDS = [
    *_for_readers("reach", "put", "4.7 MiB", "vLLM", (0.60, 0.55, 0.40)),
    *_for_readers("try", "put", "4.7 MiB", "iceoryx2", (1.25, 1.25, 1.25)),
    *_for_readers("reach", "put", "64 MiB", "vLLM", (0.22, 0.18, 0.12)),
    *_for_readers("try", "put", "64 MiB", "memcpy", (1.1, 1.1, 1.1)),
    *_for_readers("reach", "put", "64 KiB", "vLLM", (0.50, 0.55, 0.50)),
    *_for_readers("try", "put", "64 KiB", "vLLM", (0.40, 0.40, 0.40)),
    *_for_readers("reach", "hit", "4.7 MiB", "vLLM", (0.30, 0.35, 0.25)),
    *_for_readers("reach", "hit", "64 MiB", "ours, 64 KiB", (1.4, 1.4, 1.4)),
    *_for_readers("try", "hit", "4.7 MiB", "hand-off", (1.0, 1.0, 1.0)),
    Bound("reach", "copied for a hit", "64 MiB, 4 readers", "vLLM", 0),
    *_for_readers("reach", "hit", "64 MiB", "vLLM", (0.01, 0.01, 0.01)),
    *_for_readers("reach", "throughput", "4.7 MiB", "vLLM", (1.2, 2.0, 2.8), is_floor=True),
    *_for_readers("try", "throughput", "4.7 MiB", "memcpy", (0.85, 0.85, 0.85), is_floor=True),
    *_for_readers("reach", "first lap", "4.7 MiB", "vLLM", (0.15, 0.15, 0.15)),
    *_for_readers("reach", "put, private copies", "4.7 MiB", "vLLM", (1.0, 1.0, 1.0)),
    Bound("reach", "put, ring or inline", "4 KiB, 2 readers", "inline", 1.05),
]


SECTIONS: dict[str, Callable[[ReaderPool, int], Iterable[Row]]] = {
    "puts": puts_and_hits,
    "images": images,
    "hits": hits,
    "small": small_items,
    "hops": hops,
    "growth": lambda _, num_rounds: growth(num_rounds),
}


def open_sections(undo: contextlib.ExitStack) -> Mapping[str, Section]:
    torch.set_num_threads(1)
    pool = undo.enter_context(ReaderPool(max(READERS)))
    return {name: partial(section, pool) for name, section in SECTIONS.items()}


if __name__ == "__main__":
    harness.begin_with(PAST_CACHES)
    harness.main("the ring against its peers", SECTIONS, open_sections, rounds=(ROUNDS, QUICK_ROUNDS), bounds=BOUNDS)
