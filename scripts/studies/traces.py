"""Draws and reads requests to compare eviction policies with: objects for the ring, prompts for the KV cache.

**Objects**: which one is asked for next, and how large each is.

    zipf             independent requests, the k-th object with weight 1/k
    hot_scan_loop    phases of 20–60 requests: half of them for a hot set (5 % of the objects), a quarter go on with a
                     scan that comes back after thousands of requests, a quarter with a loop over 15 %, which is more
                     than a ring of 10 % holds
    equal_sizes      five loads of objects of one size, with room for 500: Zipf; sessions; Zipf with bursts of objects
                     that are asked for once; a loop over 1.3 times the room beside Zipf; a working set that is replaced
    prefix_blocks    a recorded service: the block ids of its prompts in order, from a file in the Mooncake format

No public trace says how large multimodal items are and how they come back; so all sizes are drawn, log-uniform from
64 KiB to 48 MiB, and independent of the popularity.

**Prompts**: those of a recorded service, and the same among long ones that nobody repeats.

    prompt    | id | id | id | id | id |        equal ids, equal content from the prompt's start on
              |------ full -----|- tail -|      what is not a full block is computed each time, and never published

Knows nothing of block managers. Invariant: an id stands behind the same ids wherever it occurs, as a prefix cache's
content key does; a file in which it does not is refused.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import chain, count, islice
from pathlib import Path

import numpy as np
import numpy.typing as npt

KIB, MIB = 1 << 10, 1 << 20
ALIGNMENT = 64
NUM_OBJECTS = 2000
NUM_REQUESTS = 20_000


@dataclass(frozen=True, slots=True)
class Trace:
    """Which objects are asked for.

    Attributes:
        keys: `(num_requests,)`, each an index into `sizes`.
        sizes: `(num_objects,)` bytes, multiples of the alignment.
        num_reused: objects that may be asked for again, the first ones; the others are asked for once each.
        ring_share: of the bytes of the former, that fits into the ring.
    """

    keys: npt.NDArray[np.int64]
    sizes: npt.NDArray[np.int64]
    num_reused: int
    ring_share: float = 0.1

    @property
    def ring_bytes(self) -> int:
        return int(self.ring_share * self.sizes[: self.num_reused].sum()) // ALIGNMENT * ALIGNMENT

    @property
    def is_counted(self) -> npt.NDArray[np.bool_]:
        """Which requests are for an object that may be asked for again."""
        return self.keys < self.num_reused


def draw_sizes(rng: np.random.Generator, num_objects: int) -> npt.NDArray[np.int64]:
    sizes = np.exp(rng.uniform(np.log(64 * KIB), np.log(48 * MIB), num_objects))
    return sizes.astype(np.int64) // ALIGNMENT * ALIGNMENT


def zipf(seed: int) -> Trace:
    rng = np.random.default_rng(seed)
    sizes = draw_sizes(rng, NUM_OBJECTS)
    weights = 1 / np.arange(1, NUM_OBJECTS + 1)
    return Trace(rng.choice(NUM_OBJECTS, NUM_REQUESTS, p=weights / weights.sum()), sizes, NUM_OBJECTS)


def hot_scan_loop(seed: int) -> Trace:
    rng = np.random.default_rng(seed)
    sizes = draw_sizes(rng, NUM_OBJECTS)
    hot, loop, scan = np.split(np.arange(NUM_OBJECTS), [NUM_OBJECTS // 20, NUM_OBJECTS // 5])
    position = {"loop": 0, "scan": 0}
    phases = list[npt.NDArray[np.int64]]()
    while sum(map(len, phases)) < NUM_REQUESTS:
        phase = rng.choice(["hot", "loop", "scan"], p=[0.5, 0.25, 0.25])
        length = int(rng.integers(20, 60))
        if phase == "hot":
            phases.append(rng.choice(hot, length))
            continue
        begin = position[phase]
        position[phase] += length
        phases.append(np.take(loop if phase == "loop" else scan, range(begin, begin + length), mode="wrap"))
    return Trace(np.concatenate(phases)[:NUM_REQUESTS], sizes, NUM_OBJECTS)


EQUAL_ROOM = 500
NUM_EQUAL_REQUESTS = 40_000


def equal_sizes(seed: int) -> dict[str, Trace]:
    """Draw five loads of objects of 1 MiB, by name, each with room for 500."""

    def drawn(num_objects: int, exponent: float) -> npt.NDArray[np.int64]:
        weights = 1 / np.arange(1, num_objects + 1) ** exponent
        return rng.choice(num_objects, NUM_EQUAL_REQUESTS, p=weights / weights.sum())

    rng = np.random.default_rng(seed)
    room, numbers = EQUAL_ROOM, np.arange(NUM_EQUAL_REQUESTS)
    traces = {"Zipf 0.8": drawn(8000, 0.8)}
    places = rng.integers(room * 12 // 10, size=NUM_EQUAL_REQUESTS)  # 1.2 times the room is open at a time
    session, sessions = np.arange(room * 12 // 10), []
    for number, place in enumerate(places):
        sessions.append(session[place])
        if rng.random() < 1 / 4:
            session[place] = len(session) + number
    traces["sessions, 1.2 × the room"] = np.array(sessions)
    bursts = np.arange(150 * NUM_EQUAL_REQUESTS // 1000).reshape(-1, 150) + 3500
    traces["Zipf + bursts"] = np.concatenate([drawn(3500, 1.0).reshape(-1, 1000), bursts], axis=1).ravel()
    in_loop = rng.random(NUM_EQUAL_REQUESTS) < 0.55
    loop = 1500 + (np.cumsum(in_loop) - 1) % (room * 13 // 10)
    traces["loop of 1.3 × + Zipf"] = np.where(in_loop, loop, drawn(1500, 0.9))
    traces["working set that changes"] = drawn(2000, 0.8) + 2000 * (numbers // 5000)
    return {name: _of_equal_size(keys) for name, keys in traces.items()}


def _of_equal_size(keys: npt.NDArray[np.int64]) -> Trace:
    _, keys = np.unique(keys, return_inverse=True)
    num_objects = int(keys.max()) + 1
    return Trace(keys.astype(np.int64), np.full(num_objects, MIB), num_objects, EQUAL_ROOM / num_objects)


def prefix_blocks(path: Path, seed: int, *, num_requests: int) -> Trace:
    """Read the first `num_requests` block ids; sizes are drawn."""
    with path.open(encoding="utf-8") as lines:
        ids = list(chain.from_iterable(json.loads(line)["hash_ids"] for line in lines))[:num_requests]
    _, keys = np.unique(np.array(ids, np.int64), return_inverse=True)
    rng = np.random.default_rng(seed)
    num_objects = int(keys.max()) + 1
    return Trace(keys.astype(np.int64), draw_sizes(rng, num_objects), num_objects)


def with_one_use(trace: Trace, num_others: int, seed: int) -> Trace:
    """Return the same requests with `num_others` after each for objects that nobody asks for again."""
    rng = np.random.default_rng(seed)
    first, num_new = len(trace.sizes), num_others * len(trace.keys)
    others = np.arange(first, first + num_new).reshape(-1, num_others)
    keys = np.concatenate([trace.keys[:, None], others], axis=1).ravel()
    return Trace(keys, np.concatenate([trace.sizes, draw_sizes(rng, num_new)]), trace.num_reused, trace.ring_share)


BLOCK_TOKENS = 512  # of the Mooncake format


@dataclass(frozen=True, slots=True)
class Prompt:
    """The blocks of one prompt.

    Attributes:
        block_ids: of all its blocks, the last one perhaps not full.
        num_full: how many of them are.
        arrival_s: seconds from the trace's begin.
        is_counted: whether it belongs to the service whose hit rate is asked for; else it shares no block with those.
    """

    block_ids: list[int]
    num_full: int
    is_counted: bool = True
    arrival_s: float = 0.0


def read_trace(path: Path) -> list[Prompt]:
    """Read a file in the Mooncake format: one JSON object a line, with `input_length` in tokens, `hash_ids`,
    and perhaps a `timestamp` in ms.

    Raises:
        ValueError: a line is not of that kind, or an id occurs behind different ids; the text names the line.
    """
    prompts = []
    parents: dict[int, int | None] = {}
    with path.open(encoding="utf-8") as lines:
        for number, line in enumerate(lines, 1):
            try:
                record = json.loads(line)
                block_ids, num_tokens = [int(block_id) for block_id in record["hash_ids"]], int(record["input_length"])
                arrival_s = float(record.get("timestamp", 0)) / 1000
            except (ValueError, TypeError, KeyError) as error:
                raise ValueError(f"{path}:{number}: no request in the Mooncake format: {error!r}") from error
            if len(block_ids) != -(-num_tokens // BLOCK_TOKENS) or not block_ids:
                raise ValueError(f"{path}:{number}: {len(block_ids)} blocks of {BLOCK_TOKENS} for {num_tokens} tokens")
            for parent, block_id in zip([None, *block_ids], block_ids, strict=False):
                if parents.setdefault(block_id, parent) != parent:
                    raise ValueError(f"{path}:{number}: block {block_id} is behind {parent} and {parents[block_id]}")
            prompts.append(Prompt(block_ids, num_tokens // BLOCK_TOKENS, arrival_s=arrival_s))
    return prompts


def with_scans(prompts: Sequence[Prompt], *, every: int, num_scans: int, num_blocks: int) -> list[Prompt]:
    """Return these prompts with `num_scans` one-off ones of `num_blocks` each after every `every` of them."""
    unused = count(1 + max(block_id for prompt in prompts for block_id in prompt.block_ids))
    mixed = []
    for number, prompt in enumerate(prompts, 1):
        mixed.append(prompt)
        if number % every == 0:
            mixed += [Prompt(list(islice(unused, num_blocks)), num_blocks, is_counted=False) for _ in range(num_scans)]
    return mixed
