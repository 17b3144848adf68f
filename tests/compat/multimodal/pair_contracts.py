"""What a sender and its receivers promise together, in every mode: whatever is asked, the model gets what it would get
without a cache. Each pair runs it (`test_pairs`); what each end promises alone is in `contracts`.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence

import pytest

from mmcached.wire.errors import CacheMiss
from tests.compat.multimodal.contracts import Content, content
from tests.compat.multimodal.library_pairs import CAPACITY, Items, LibraryPair, expected, size_of

PairPromise = Callable[[LibraryPair], None]

SMALL, SMALLER, MIDDLE, OVERSIZED = "0", "3", "4", "5"
"""Keys, by the size of their items."""


def contents(served: Sequence[Items]) -> list[list[Content]]:
    return [[content(item) for item in items] for items in served]


def check_serves(pair: LibraryPair, keys: Sequence[str], num_looks: int = 0) -> None:
    """Serve a request; every receiver gives the model what it would get without a cache."""
    assert contents(pair.serve(keys, num_looks)) == [expected(keys)] * len(pair.receivers)


def the_model_gets_the_same_as_without_a_cache(pair: LibraryPair) -> None:
    """100 requests of up to 3 of 16 items, half of which fit; some items come twice in one request."""
    rng = random.Random(5)
    for number in range(100):
        check_serves(pair, [str(rng.randrange(16)) for _ in range(rng.randrange(4))], num_looks=number % 4)
        pair.check_integrity()
    assert pair.num_resends == 0
    if pair.sender is not None:
        stats = pair.sender.stats()
        assert 0 < stats.hits < stats.queries


def an_oversized_item_is_served_every_time(pair: LibraryPair) -> None:
    assert size_of(OVERSIZED) > CAPACITY
    check_serves(pair, ["0"])
    for keys in ([OVERSIZED], ["0", OVERSIZED, "1"], [OVERSIZED]):
        check_serves(pair, keys)
        assert pair.sender is None or not pair.sender.is_cached_item(OVERSIZED)
    assert pair.num_processed == (5 if pair.sender is not None else 6)
    assert pair.num_resends == 0


def a_hit_is_processed_once(pair: LibraryPair) -> None:
    if pair.sender is None:
        return
    for _ in range(3):
        check_serves(pair, ["0", "3"])
    assert pair.num_processed == 2
    assert (pair.sender.stats().hits, pair.sender.stats().queries) == (4, 6)


def clearing_both_ends_makes_items_travel_again(pair: LibraryPair) -> None:
    check_serves(pair, ["0", "1"])
    if pair.sender is not None:
        pair.sender.clear_cache()
    for receiver in pair.receivers:
        if receiver is not None:
            receiver.clear_cache()
    check_serves(pair, ["1", "0"])
    assert (pair.num_processed, pair.num_resends) == (4, 0)


def clearing_the_sender_alone_costs_no_resend(pair: LibraryPair) -> None:
    check_serves(pair, ["0", "1"])
    if pair.sender is not None:
        pair.sender.clear_cache()
    check_serves(pair, ["1", "2", "0"])
    assert pair.num_resends == 0


def a_receiver_that_forgets_costs_one_resend_at_most(pair: LibraryPair) -> None:
    """P0 believes it has what it was sent, and sends None, or a lease of a former life."""
    check_serves(pair, ["0", "1", "2"])
    pair.forget(0)
    check_serves(pair, ["2", "0", "7"])
    assert pair.num_resends == (1 if pair.kind == "lru" else 0), "only a mirror counts on its receiver"
    check_serves(pair, ["0", "2", "7"])
    assert pair.num_resends <= 1
    sent = pair.hand_out(["0", "1"])
    pair.forget(0)
    assert contents(pair.serve(["0", "1"], sent=sent)) == [expected(["0", "1"])] * len(pair.receivers)
    check_serves(pair, ["1", "0"])
    assert pair.num_resends <= 2


def an_aborted_request_costs_the_next_one_resend_at_most(pair: LibraryPair) -> None:
    pair.abort(pair.hand_out(["0", "1"]), ["0", "1"])
    assert pair.num_leases() == 0
    check_serves(pair, ["1", "0", "2"])
    assert pair.num_resends == (1 if pair.kind == "lru" else 0)
    check_serves(pair, ["0", "1", "2"])
    assert pair.num_resends <= 1


def an_item_that_only_p0_believes_in_is_missed_and_sent_again(pair: LibraryPair) -> None:
    """Step by step: what P0 has believes until it is told; after `invalidate` the item goes with its data."""
    if pair.kind != "lru" or pair.sender is None:
        return
    pair.hand_out(["0"])  # lost on the way
    sent = pair.hand_out(["0"])
    assert sent == [None]
    with pytest.raises(CacheMiss) as caught:
        pair.deliver(0, sent, ["0"])
    assert caught.value.mm_hashes == ["0"]
    pair.sender.invalidate("0")
    assert not pair.sender.is_cached_item("0")
    for _ in range(2):
        check_serves(pair, ["0"])
    assert pair.num_resends == 0


def what_the_model_holds_stays_as_it_is(pair: LibraryPair) -> None:
    """While it holds two requests' items, all else is replaced many times over, and is served."""
    held = [pair.serve(keys) for keys in (["0", "3"], ["4", "0"])]
    for number in range(40):
        check_serves(pair, [str(number % 16), str((number + 5) % 16)])
    assert [contents(served) for served in held] == [
        [expected(keys)] * len(pair.receivers) for keys in (["0", "3"], ["4", "0"])
    ]
    held.clear()
    check_serves(pair, ["6", "7", "8"])


PAIR_PROMISES: list[PairPromise] = [
    the_model_gets_the_same_as_without_a_cache,
    an_oversized_item_is_served_every_time,
    a_hit_is_processed_once,
    clearing_both_ends_makes_items_travel_again,
    clearing_the_sender_alone_costs_no_resend,
    a_receiver_that_forgets_costs_one_resend_at_most,
    an_aborted_request_costs_the_next_one_resend_at_most,
    an_item_that_only_p0_believes_in_is_missed_and_sent_again,
    what_the_model_holds_stays_as_it_is,
]
"""After each, no lease is out."""
