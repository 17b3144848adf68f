"""Says which fleets are simulated: one around which everything is varied, one setting at a time.

    10 hosts, each with a first level of 64 GiB and asked for 10 pictures a second; a second level of 256 GiB

Of the others a row names what is different. `rules` replaces the first level's rule by the one of the real store.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace

from mmcached.cli.traces.simulated_store import StoreCache
from scripts.studies.policies import Lru
from scripts.studies.simulate_fleet.levels import Outcome, play
from scripts.studies.simulate_fleet.requests import Load, Requests, draw

HOSTS = (1, 3, 10, 30, 100, 300, 1000)
FIRST_GIB = 64.0
SECOND_GIB = 256.0
GIB_A_HOST = 25.6
"""Of a second level that grows with the fleet."""
REQUESTS_A_HOST = 20_000
"""A first level is full after half of them; of fewer than ten hosts it takes more until the second level is."""


@dataclass(frozen=True, slots=True)
class Case:
    """A fleet, with one second level or several to compare.

    Attributes:
        varied: what it is about; cases of one such kind are a line in a chart.
        name: what is different.
        second_gib: sizes of the second level.
    """

    varied: str
    name: str
    load: Load
    first_gib: float = FIRST_GIB
    second_gib: tuple[float, ...] = (SECOND_GIB,)

    def requests(self, seed: int) -> Requests:
        return draw(self.load, max(10, self.load.hosts) * REQUESTS_A_HOST, seed)

    def outcomes(self, seed: int) -> list[Outcome]:
        return play(self.requests(seed), self.load.hosts, self.first_gib, self.second_gib)


BASE = Case("hosts", "10 hosts", Load())
FIRST_LEVELS = (16.0, 32.0, 64.0, 128.0)


def cases(max_hosts: int = HOSTS[-1]) -> Iterator[Case]:
    """Yield the cases of the page, the dear ones among them up to so many hosts."""
    for hosts in (each for each in HOSTS if each <= max_hosts):
        sizes = tuple(sorted({SECOND_GIB, hosts * GIB_A_HOST}))
        yield Case("hosts", f"{hosts:,} host{'s' * (hosts > 1)}", replace(BASE.load, hosts=hosts), second_gib=sizes)
    for affinity in (0.99, 0.98, 0.95, 0.9, 0.8, 0.5, 0.0):
        name = f"{1 - affinity:.0%} of later turns anywhere"
        yield Case("affinity", name, replace(BASE.load, affinity=affinity))
    for exponent in (0.6, 0.75, 0.9, 1.05, 1.2):
        yield Case("exponent", f"exponent {exponent}", replace(BASE.load, exponent=exponent))
    for own in (0.0, 0.25, 0.5, 0.75, 1.0):
        yield Case("own", f"{own:.0%} of the pictures their sessions' own", replace(BASE.load, own=own))
    for first_gib in FIRST_LEVELS:
        yield Case("first level", f"first level of {first_gib:.0f} GiB", BASE.load, first_gib)
    for second_gib in (16.0, 64.0, 256.0, 1024.0):
        yield Case("second level", f"second level of {second_gib:,.0f} GiB", BASE.load, second_gib=(second_gib,))


def rules(first_gib: Iterable[float], seed: int) -> Iterator[tuple[float, Outcome, Outcome]]:
    """Yield what is found with a first level of each size that is LRU, and with one that has the store's own rule."""
    requests = BASE.requests(seed)
    for gib in first_gib:
        lru, ring = (play(requests, BASE.load.hosts, gib, BASE.second_gib, rule)[0] for rule in (Lru, StoreCache))
        yield gib, lru, ring
