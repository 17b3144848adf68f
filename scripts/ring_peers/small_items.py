"""From which size on an item is better off in the ring than inline in the message, both measured side by side."""

from __future__ import annotations

from functools import partial

from benchmark import Row, row
from ring_peers.inline import InlineWriterEnd
from ring_peers.ours import RingWriterEnd
from ring_peers.pool import ReaderPool
from ring_peers.rounds import MIB, drivers, interleave
from ring_peers.transport import Shape

KIB = 1024
SIZES_BYTES = (KIB, 4 * KIB, 16 * KIB, 32 * KIB, 64 * KIB, 128 * KIB, 256 * KIB)
RING_BYTES = 32 * MIB
NUM_READERS = 2
NUM_SAMPLES = 60
WARM_UP = 200


def small_items(pool: ReaderPool, num_rounds: int) -> list[Row]:
    """Put small items through the ring and inline; find the size below which inline is not slower."""
    rows = [_one_size(pool, size, num_rounds) for size in SIZES_BYTES]
    slower = [size for size, each in zip(SIZES_BYTES, rows, strict=True) if each.ratio > 1]
    threshold = 2 * max(slower, default=SIZES_BYTES[0] // 2)
    params = f"{NUM_READERS} readers"
    item = rows[SIZES_BYTES.index(4 * KIB)]
    # What is measured to be better inline travels inline, and then costs what inline costs.
    ours = item.ours if threshold <= 4 * KIB else item.peer_value
    rows.append(row("put, ring or inline", item.params, ours, "us", peer="inline", peer_value=item.peer_value))
    return [*rows, row("inline below", params, threshold / KIB, "KiB", peer="4 KiB item", peer_value=4)]


def _one_size(pool: ReaderPool, item_bytes: int, num_rounds: int) -> Row:
    shape = Shape(item_bytes, RING_BYTES, NUM_READERS)
    with drivers(pool, shape, [RingWriterEnd, InlineWriterEnd]) as (ring, inline):
        runs = []
        for driver in (ring, inline):
            driver.puts(min(WARM_UP, shape.lap))
            runs.append((driver.end.name, partial(driver.puts, NUM_SAMPLES)))
        figures = interleave(runs, num_rounds)
    ours, peer_value = (figures[driver.end.name] for driver in (ring, inline))
    return row(
        "put", f"{item_bytes // KIB} KiB, {NUM_READERS} readers", ours, "us", peer="inline", peer_value=peer_value
    )
