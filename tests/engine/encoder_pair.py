"""An encoder cache manager, its naive model and two workers, led through one history; compared after every action.

A history is a list of actions with a number each, which chooses request, item, and whatever else there is to choose.
The workers do as they are told, and keep what they were not told to drop: what the books say of them must be true.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field

import pytest

from mmcached.engine import Request, SharedEncoderCacheManager
from mmcached.engine.encoder.encoder_budget import EncoderCacheScope
from mmcached.engine.encoder.encoder_cache_table import EncoderCacheTable
from mmcached.engine.steps.request import ScheduledItem
from mmcached.wire.errors import InvalidRequest, LocalProtocolError
from tests.engine.builders import encode
from tests.engine.integrity import check_encoder
from tests.engine.naive_encoder_book import Key, NaiveEncoderBook, OtherSizeError

CACHE_SIZE = 14
ACTIONS = [
    *("take up", "take up", "free input") * 6,
    *("begin", "begin", "begin", "commit", "send", "allocate", "free") * 2,
    *("withdraw", "told", "another request", "new epoch", "reset"),
]
NUMBERS = 1 << 16
NUM_REQUESTS = 4
ITEMS = [("a", 2), ("b", 3), ("a", 2), ("a@1", 3), ("c", 6), ("d", 1), ("e", 10), ("b", 4), ("c@1", 2), ("b", 3)]


Outputs = dict[str, int]
"""What one worker holds: sizes by key."""


@dataclass
class Plan:
    """What a step tells the workers: keys to drop, and what to encode."""

    freed: list[str]
    encode: Outputs = field(default_factory=dict)

    def run(self, held: Outputs) -> None:
        self._drop(held, self.freed)
        held |= self.encode
        assert sum(held.values()) <= CACHE_SIZE, "a worker holds more than fits"

    def fail(self, held: Outputs) -> None:
        self._drop(held, [*self.freed, *self.encode])

    @staticmethod
    def _drop(held: Outputs, keys: list[str]) -> None:
        for key in keys:
            held.pop(key, None)


class Pair:
    """Both sides of a comparison.

    Attributes:
        seen: how often what happened.
    """

    def __init__(self, scope: EncoderCacheScope, book: EncoderCacheTable) -> None:
        self.book = book
        self.model = NaiveEncoderBook(scope, CACHE_SIZE)
        self.workers: list[Outputs] = [{}, {}]
        self.seen: Counter[str] = Counter()
        self._requests: list[Request] = []
        self._num_requests = 0
        self._step_id = 0
        self._plan: Plan | None = None
        self._keys: dict[Key, str] = {}
        self._told_since_allocated: set[str] = set()
        for number in range(NUM_REQUESTS):
            self._requests.append(self._new_request(7 * number))

    def do(self, action: str, number: int) -> None:
        """Do an action if it is possible now, and compare everything."""
        slot, number = number % NUM_REQUESTS, number // NUM_REQUESTS
        request = self._requests[slot]
        input_id, number = number % len(request.features), number // len(request.features)
        match action:
            case "take up":
                self._take_up(request, input_id)
            case "allocate":
                self._allocate_blindly(request, input_id)
            case "free input":
                self._free_input(request, input_id)
            case "free":
                self._free(request)
            case "another request":
                self._free(request)
                self._requests[slot] = self._new_request(number)
            case "begin" if not self.model.is_step_open:
                self._step_id += 1
                self.book.begin_step(self._step_id)
                self.model.begin()
            case "send" if self.model.is_step_open:
                self._send()
            case "commit" if self.model.is_step_open:
                self._commit()
            case "withdraw" if self.model.is_step_open:
                self._withdraw(number)
            case "told" if not self.model.is_step_open:
                self._tell_at_once()
            case "new epoch":
                self._new_epoch()
            case "reset" if number % 8 == 0:
                self._reset()
        self.seen[action] += 1
        self.compare()

    def finish(self) -> None:
        """Let all requests go and the workers hear of it; then they hold what the books list, no more."""
        if self.model.is_step_open:
            self._commit()
        for request in self._requests:
            self._free(request)
        assert self.book.num_freeable_slots == CACHE_SIZE
        self._tell_at_once()
        self.compare()
        for worker in self.workers:
            assert worker.keys() == self.book.ready_keys(), "a worker was not told, or told too much"

    # ---- actions

    def _new_request(self, number: int) -> Request:
        self._num_requests += 1
        items = [ITEMS[(number + 3 * index * (1 + number % 3)) % len(ITEMS)] for index in range(1 + number % 4)]
        return encode(self._num_requests, *items)

    def _take_up(self, request: Request, input_id: int) -> None:
        """As a scheduler does it: refer to what is there, or allocate what fits."""
        if self._plan is not None:
            return
        held = self.model.held(request, input_id)
        try:
            is_there = self.model.check(request, input_id)
        except OtherSizeError:
            self.seen["other size"] += 1
            with pytest.raises(InvalidRequest):
                self.book.check_and_update_cache(request, input_id)
            return
        assert self.book.check_and_update_cache(request, input_id) == is_there
        if is_there:
            entry = self.model.held(request, input_id)
            assert entry is not None
            self.seen["hit on what is not encoded yet" if not entry.is_ready else "hit"] += held is None
            self.seen["old one goes on"] += entry.epoch != self.model.epoch
            self.seen["repeat"] += sum(req == request.request_id for req, _ in entry.references) > 1
        elif self.model.fits(request, input_id):
            self._allocate(request, input_id)
        else:
            self.seen["refused"] += 1

    def _allocate(self, request: Request, input_id: int) -> None:
        num_evicted = self.model.num_evicted
        content = self.model.content(request, input_id)
        self.seen["beside its old self"] += any(entry.content == content for entry in self.model.entries)
        self.seen["there again before told"] += self.model.key(request, input_id) in self.model.pending
        self.model.allocate(request, input_id)
        self.book.allocate(request, input_id)
        self.seen["evicted"] += self.model.num_evicted - num_evicted
        key = self.book.entry_key(request, input_id)
        self._told_since_allocated.discard(key)
        if not self.model.is_step_open:
            self._tell_at_once()
            for worker in self.workers:
                Plan([], {key: request.features[input_id].num_embeds}).run(worker)

    def _allocate_blindly(self, request: Request, input_id: int) -> None:
        """Without asking: what is there, or does not fit, is refused."""
        if self._plan is not None:
            return
        try:
            is_refused = self.model.entry(request, input_id) is not None or not self.model.fits(request, input_id)
        except OtherSizeError:
            with pytest.raises((InvalidRequest, LocalProtocolError)):
                self.book.allocate(request, input_id)
            return
        if not is_refused:
            self._allocate(request, input_id)
            return
        with pytest.raises(LocalProtocolError):
            self.book.allocate(request, input_id)

    def _free_input(self, request: Request, input_id: int) -> None:
        entry = self.model.held(request, input_id)
        self.seen["freed without being held"] += entry is None
        if entry is not None:
            self._note_release(entry.is_ready, entry.epoch, len(entry.references) - 1)
        self.model.free_input(request, input_id)
        self.book.free_encoder_input(request, input_id)

    def _free(self, request: Request) -> None:
        for entry in self.model.entries:
            num_others = sum(request_id != request.request_id for request_id, _ in entry.references)
            if num_others < len(entry.references):
                self._note_release(entry.is_ready, entry.epoch, num_others)
        self.model.free(request)
        self.book.free(request)

    def _note_release(self, is_ready: bool, epoch: int, num_others: int) -> None:
        self.seen["given up in its step"] += not is_ready and not num_others
        self.seen["given up in its step, others go on"] += not is_ready and num_others > 0
        self.seen["freed in flight"] += self._plan is not None
        self.seen["old one ended"] += epoch != self.model.epoch and not num_others

    def _send(self) -> None:
        if self._plan is not None:
            return
        reserved = self._reserved()
        self._plan = Plan(self._take_freed(), {each.key: self._size(each) for each in reserved})

    def _reserved(self) -> list[ScheduledItem]:
        return self.book.reserved_inputs({request.request_id: request for request in self._requests})

    def _size(self, reserved: ScheduledItem) -> int:
        request, input_id, key = reserved
        assert self.book.entry_key(request, input_id) == key, "it does not refer to it"
        return request.features[input_id].num_embeds

    def _commit(self) -> None:
        self._send()
        assert self._plan is not None
        for worker in self.workers:
            self._plan.run(worker)
        self._told(self._plan.freed)
        self.model.commit()
        self.book.commit(self._step_id)
        self._plan = None

    def _withdraw(self, number: int) -> None:
        """Each worker has run the step, or failed in it, or never saw it."""
        if self._plan is not None:
            for worker in self.workers:
                if number % 3:
                    (self._plan.run if number % 3 == 1 else self._plan.fail)(worker)
                number //= 3
            self.seen["told again"] += bool(self._plan.freed)
        entries = [entry for entry in self.model.entries if not entry.is_ready]
        self.seen["withdrawn with others"] += any(len({req for req, _ in each.references}) > 1 for each in entries)
        self.seen["withdrawn, and old"] += any(entry.epoch != self.model.epoch for entry in entries)
        self.model.withdraw()
        self.book.withdraw(self._step_id)
        self._plan = None

    def _tell_at_once(self) -> None:
        freed = self._take_freed()
        for worker in self.workers:
            Plan(freed).run(worker)
        self._told(freed)

    def _take_freed(self) -> list[str]:
        freed = self.book.take_freed()
        assert len(set(freed)) == len(freed)
        assert set(freed) == {self._keys[key] for key in self.model.take()}
        return freed

    def _told(self, freed: list[str]) -> None:
        """Each worker has done this."""
        assert self._told_since_allocated.isdisjoint(freed), "told twice"
        self._told_since_allocated.update(freed)

    def _new_epoch(self) -> None:
        entries = self.model.entries
        self.seen["new epoch with holders"] += any(entry.references for entry in entries)
        self.seen["new epoch with idle entries"] += any(not entry.references for entry in entries)
        self.model.new_epoch()
        assert self.book.new_epoch() == self.model.epoch

    def _reset(self) -> None:
        self.model.reset()
        self.book.reset()
        self._plan = None
        for worker in self.workers:
            worker.clear()

    # ---- comparison

    def compare(self) -> None:
        """Ask the book everything, and the model."""
        book, model = self.book, self.model
        check_encoder(book)
        assert (book.cache_size, book.epoch) == (CACHE_SIZE, model.epoch)
        assert (book.num_free_slots, book.num_freeable_slots) == (model.num_free, model.num_freeable)
        assert 0 <= book.num_free_slots <= book.num_freeable_slots <= CACHE_SIZE
        for request in self._requests:
            for input_id in range(len(request.features)):
                self._compare_item(request, input_id)
            held = {input_id for entry in model.entries for req, input_id in entry.references if _is(req, request)}
            assert book.get_cached_input_ids(request) == held
        assert book.holders() == {req for entry in model.entries for req, _ in entry.references}
        assert book.ready_keys() == {self._keys[key] for key in model.keys(is_ready=True)}
        assert book.lingering_keys() == {self._keys[key] for key in model.lingering()}
        assert [each.key for each in self._reserved()] == [
            self._keys[entry.key] for entry in model.entries if not entry.is_ready
        ]
        if isinstance(book, SharedEncoderCacheManager):
            assert list(book.freeable) == [self._keys[entry.key] for entry in model.idle()]
        self._compare_stats()
        self._compare_workers()

    def _compare_item(self, request: Request, input_id: int) -> None:
        book, model = self.book, self.model
        key, known = book.entry_key(request, input_id), model.key(request, input_id)
        assert self._keys.setdefault(known, key) == key, "the key of an entry has changed"
        assert len(set(self._keys.values())) == len(self._keys), "two entries have the same key"
        found = model.anyones(request, input_id)
        assert book.get_cached_num_encoder_embeds(request, input_id) == (found.size if found is not None else None)
        for num_taken in (0, 3):
            assert book.can_allocate(request, input_id, None, num_taken) == model.fits(request, input_id, num_taken)
        try:
            is_there, num_to_pin = model.entry(request, input_id) is not None, model.num_to_pin(request, input_id)
        except OtherSizeError:
            with pytest.raises(InvalidRequest):
                book.has_cache(request, input_id)
            return
        assert (book.has_cache(request, input_id), book.num_embeds_to_pin(request, input_id)) == (is_there, num_to_pin)

    def _compare_stats(self) -> None:
        model, stats = self.model, self.book.stats()
        assert (stats.queries, stats.hits) == (model.num_hits + model.num_allocated, model.num_hits)
        assert (stats.embeds_used, stats.embeds_total) == (CACHE_SIZE - model.num_free, CACHE_SIZE)
        assert stats.evictions == model.num_evicted

    def _compare_workers(self) -> None:
        ready, reserved = self.book.ready_keys(), {each.key for each in self._reserved()}
        for worker in self.workers:
            assert ready <= worker.keys(), "listed as READY, and a worker does not hold it"
            assert worker.keys() <= ready | reserved | self.book.lingering_keys(), "nobody will tell the worker"


def _is(request_id: int, request: Request) -> bool:
    return bool(request_id == request.request_id)
