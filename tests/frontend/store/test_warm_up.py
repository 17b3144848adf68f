"""What the figures of a warm-up say while it goes on: its state, and how many records have come or were skipped."""

from __future__ import annotations

import msgspec

from mmcached.cache.store_keys import store_key
from mmcached.wire.fetch_stats import WARM_UP_STATES
from mmcached.wire.messages import second_level as of_level
from tests.frontend.fake_peers import Bench
from tests.frontend.second_levels import FakeSecondLevel
from tests.frontend.store.test_second_level import CONFIG as OF_LEVEL
from tests.frontend.store.test_second_level import fetches
from tests.frontend.store.test_store_service import record_of

CONFIG = msgspec.structs.replace(OF_LEVEL, store_warm_up=True)
NAMES = [store_key("t", key) for key in "abcd"]


def shown(bench: Bench) -> tuple[str, int, int]:
    found = fetches(bench)
    return WARM_UP_STATES[found.warm_up], found.warmed, found.warm_skipped


def tell(level: FakeSecondLevel, *names: str) -> None:
    level.client.channel.send(of_level.RecentNames(level.client.client_id, list(names)))


def test_the_figures_tell_how_far_it_is(bench: Bench) -> None:
    assert shown(bench) == ("waiting", 0, 0)
    level = FakeSecondLevel(bench)
    assert level.orders().asks_names
    assert shown(bench) == ("waiting", 0, 0)
    bench.connect_client().put("a", record_of(1), tenant="t")
    tell(level, *NAMES)
    orders = level.orders()
    while not orders.fetches:
        orders = level.orders()
    first, second, third = orders.fetches
    assert [each.key for each in orders.fetches] == NAMES[1:]
    assert shown(bench) == ("running", 0, 1), "one is here"
    level.put(first, record_of(2))
    level.end(second, "miss")
    assert shown(bench) == ("running", 1, 2)
    level.put(third, record_of(3))
    assert shown(bench) == ("done", 2, 2)


def test_names_that_a_dead_process_left_are_not_skipped(bench: Bench) -> None:
    level = FakeSecondLevel(bench)
    assert level.orders().asks_names
    tell(level, *(store_key("t", f"{number}") for number in range(12)))
    bench.pump(lambda: shown(bench)[0] == "running")
    level.die()
    assert shown(bench) == ("waiting", 0, 8), "of those that were under way nothing is known"
    level = FakeSecondLevel(bench)
    assert level.orders().asks_names
    tell(level)
    bench.pump(lambda: shown(bench) == ("done", 0, 8))
