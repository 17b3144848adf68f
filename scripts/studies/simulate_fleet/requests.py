"""Draws who asks which host for which picture, or derives it from a recorded service.

A session has one picture, asks for it at each of its turns, and has a home among the hosts:

    turn 1, home ──think──► turn 2, home with probability `affinity`, else any host ──think──► turn 3 …

Its picture is its own, which nobody else has, or one of a catalogue, the k-th of which has the weight 1/k ** exponent.
No public trace says how pictures come back; so shares, turns and the catalogue are assumptions, and arguments.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from scripts.studies.traces import Prompt


class Requests(NamedTuple):
    """What is asked for, in order of time.

    Attributes:
        hosts: `(num_requests,)`, who is asked.
        keys: `(num_requests,)`, for what.
        length_s: seconds from the first to the last.
    """

    hosts: npt.NDArray[np.int64]
    keys: npt.NDArray[np.int64]
    length_s: float


@dataclass(frozen=True, slots=True)
class Load:
    """What the users of a fleet do.

    Attributes:
        hosts: how many there are.
        images_per_s: that each is asked for.
        exponent: of the catalogue's popularity; 0 is all alike.
        affinity: share of the later turns that reach the session's home; the others go to any host.
        own: share of the sessions whose picture nobody else has.
        pictures: in the catalogue.
        turns: of a session, mean; geometric.
        think_s: between two turns of a session, mean; exponential.
    """

    hosts: int = 10
    images_per_s: float = 10.0
    exponent: float = 0.9
    affinity: float = 0.9
    own: float = 0.5
    pictures: int = 1_000_000
    turns: float = 4.0
    think_s: float = 60.0

    def __post_init__(self) -> None:
        """Raise ValueError where nothing can be drawn."""
        for name, least, most in (
            ("hosts", 1, 10_000),
            ("images_per_s", 0.001, 1e6),
            ("exponent", 0, 10),
            ("affinity", 0, 1),
            ("own", 0, 1),
            ("pictures", 1, 10**8),
            ("turns", 1, 1000),
            ("think_s", 0, 1e6),
        ):
            value = getattr(self, name)
            if not least <= value <= most:
                raise ValueError(f"{name} is {value}, not {least} … {most}")


def draw(load: Load, num_requests: int, seed: int) -> Requests:
    """Draw about so many requests; sessions that began earlier go on in them."""
    uniform = np.random.default_rng(seed).random
    rate = load.hosts * load.images_per_s
    length_s = num_requests / rate
    before_s = 3 * load.turns * load.think_s
    num_sessions = round(rate / load.turns * (before_s + length_s))
    is_own = uniform(num_sessions) < load.own
    pictures = np.where(is_own, load.pictures + np.arange(num_sessions), _popular(load, uniform(num_sessions)))
    homes = (uniform(num_sessions) * load.hosts).astype(np.int64)
    num_turns = 1 + (np.log1p(-uniform(num_sessions)) / np.log(1 - 1 / load.turns) if load.turns > 1 else 0)
    session_of = np.repeat(np.arange(num_sessions), np.asarray(num_turns, np.int64) * np.ones(num_sessions, np.int64))
    is_first = np.diff(session_of, prepend=-1) > 0
    waits = np.where(is_first, 0.0, -load.think_s * np.log1p(-uniform(len(session_of))))
    passed = np.cumsum(waits)
    starts = uniform(num_sessions) * (before_s + length_s) - before_s
    times = passed + (starts - passed[is_first])[session_of]
    is_home = is_first | (uniform(len(session_of)) < load.affinity)
    hosts = np.where(is_home, homes[session_of], (uniform(len(session_of)) * load.hosts).astype(np.int64))
    inside = np.flatnonzero((times >= 0) & (times < length_s))
    order = inside[np.argsort(times[inside])]
    return Requests(hosts[order], pictures[session_of[order]], length_s)


def _popular(load: Load, uniform: npt.NDArray[np.float64]) -> npt.NDArray[np.int64]:
    """Turn numbers of 0 … 1 into pictures by their popularity."""
    return np.searchsorted(np.cumsum(popularity(load)), uniform).clip(max=load.pictures - 1)


def popularity(load: Load) -> npt.NDArray[np.float64]:
    """Return `(pictures,)` shares, the most popular first."""
    weights = np.arange(1, load.pictures + 1) ** -load.exponent
    return np.asarray(weights / weights.sum())


def recorded(prompts: Sequence[Prompt], num_hosts: int, affinity: float, seed: int) -> Requests:
    """Take each block of a recorded service's prompts for a picture.

    A prompt goes on with the session of the last one that has its second block, or a later one, too; the first block is
    the same for all who have the same instructions.
    """
    uniform = np.random.default_rng(seed).random
    hosts, keys = list[int](), list[int]()
    block_to_home = dict[int, int]()
    for prompt in prompts:
        known = [block_id for block_id in prompt.block_ids[1:] if block_id in block_to_home]
        anywhere = int(uniform() * num_hosts)
        home = block_to_home[known[-1]] if known else anywhere
        block_to_home.update(dict.fromkeys(prompt.block_ids[1:], home))
        hosts += [home if uniform() < affinity else anywhere] * len(prompt.block_ids)
        keys += prompt.block_ids
    length_s = prompts[-1].arrival_s - prompts[0].arrival_s
    return Requests(np.array(hosts), np.array(keys), length_s)
