"""Fetches at random: whoever is parked goes on exactly once, by its deadline at the latest; who has gone never does."""

from __future__ import annotations

from functools import partial
from itertools import count

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from mmcached.frontend.store.fetch_table import FetchTable, Parked, Wanted
from mmcached.wire.config import ServiceConfig
from mmcached.wire.limits import LimitsConfig
from tests.frontend.integrity import check_fetches
from tests.house.drawing import examples

TIMEOUT_S, CLAIM_WAIT_S = 4, 16
CONFIG = ServiceConfig(
    max_num_requests=6,
    limits=LimitsConfig(
        l2_timeout_ms=1000 * TIMEOUT_S, l2_claim_wait_ms=1000 * CLAIM_WAIT_S, max_requests_per_client=4
    ),
)
NAMES, CLIENTS = st.sampled_from("abcd"), st.sampled_from(["ann", "bob", ""])


class FetchesModel(RuleBasedStateMachine):
    """The table beside lists: who was parked when, and how often it went on."""

    def __init__(self) -> None:
        super().__init__()
        self.now = 0.0
        self.table = FetchTable(CONFIG, lambda: self.now)
        self.request_ids = count()
        self.parked: dict[int, tuple[Parked, float]] = {}
        self.num_went_on: dict[int, int] = {}
        self.ordered: list[int] = []
        self.num_fetches = 0

    def go_on(self, request_id: int) -> None:
        self.num_went_on[request_id] = self.num_went_on.get(request_id, 0) + 1

    def after(self) -> None:
        """Serve who is ready."""
        for one in self.table.take_ready():
            assert one.request_id in self.parked, "it had gone, or went on before"
            one.go_on()
            del self.parked[one.request_id]

    @rule(client=CLIENTS, names=st.lists(NAMES, min_size=1, max_size=3, unique=True), kind=st.integers(0, 2))
    def park(self, client: str, names: list[str], kind: int) -> None:
        claims, waits_elsewhere = kind > 0, kind > 1
        number = next(self.request_ids)
        one = Parked(client, number, b"1" if number % 2 else b"2", partial(self.go_on, number), waits_elsewhere)
        wanted = [Wanted(name, "", name) for name in names]
        if self.table.park(one, wanted, claims=claims):
            self.parked[number] = (one, self.now)

    @rule(limit=st.integers(1, 3))
    def order(self, limit: int) -> None:
        orders = self.table.take_orders(7, limit)
        numbers = [fetch.number for fetch in orders]
        assert not set(numbers) & set(self.ordered), "ordered twice"
        assert all(1 <= fetch.timeout_ms <= 1000 * TIMEOUT_S for fetch in orders)
        self.ordered += numbers

    @precondition(lambda self: self.ordered)
    @rule(data=st.data(), outcome=st.sampled_from(["hit", "miss", "elsewhere", "late", "failed"]))
    def ended(self, data: st.DataObject, outcome: str) -> None:
        self.table.ended(data.draw(st.sampled_from(self.ordered)), outcome)
        self.after()

    @rule(name=NAMES)
    def put(self, name: str) -> None:
        self.table.arrived(name, "hit")
        assert not self.table.is_elsewhere(name)
        self.after()

    @rule(client=st.sampled_from(["ann", "bob"]), but_over=st.sampled_from([None, b"1"]))
    def leave(self, client: str, but_over: bytes | None) -> None:
        self.table.leave(client, but_over=but_over)
        self.parked = {
            number: (one, since)
            for number, (one, since) in self.parked.items()
            if one.client_id != client or one.peer == but_over
        }

    @precondition(lambda self: self.parked)
    @rule(data=st.data())
    def cancel(self, data: st.DataObject) -> None:
        number = data.draw(st.sampled_from(sorted(self.parked)))
        one, _ = self.parked.pop(number)
        self.table.cancel(one.client_id, number)

    @rule()
    def flush(self) -> None:
        self.table.end_all()
        self.after()
        assert self.parked == {}

    @rule(seconds=st.integers(1, 6))
    def time_passes(self, seconds: int) -> None:
        self.now += seconds
        self.table.expire(self.now)
        self.after()
        for one, since in self.parked.values():
            limit_s = TIMEOUT_S + (CLAIM_WAIT_S if one.waits_elsewhere else 0)
            assert self.now - since < limit_s, "it waits for too long"

    @invariant()
    def agrees(self) -> None:
        check_fetches(self.table)
        assert self.table.num_parked == len(self.parked)
        assert self.table.num_parked <= CONFIG.max_num_requests
        assert all(times == 1 for times in self.num_went_on.values())
        assert self.table.next_deadline > self.now
        assert (self.table.next_deadline < float("inf")) or not self.parked


TestFetchesModel = FetchesModel.TestCase
TestFetchesModel.settings = settings(max_examples=examples(50), stateful_step_count=30)
