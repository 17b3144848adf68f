"""Lists what is explored of leases that readers take by themselves, as it is and with one rule removed.

Small scenarios are part of the suite, the large ones of the soak; none is cut off.
"""

from __future__ import annotations

import contextlib
from collections.abc import Hashable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any
from unittest import mock

from mmcached.shm.ring import (
    adoption,
    current_records,
    lookup,
    reader_entry,
    reader_watch,
    ring,
    ring_readers,
    slot_table,
)
from mmcached.shm.ring.chunks import ChunkTable
from mmcached.shm.ring.leases import LeaseTable
from mmcached.shm.ring.lookup import Lookup
from mmcached.shm.ring.reader_entry import ReaderEntry
from mmcached.shm.ring.reader_watch import ReaderStopped, ReaderVoided
from mmcached.shm.ring.self_lease import take
from mmcached.shm.ring.slot_table import (
    CHECK,
    FIRST_KEY,
    GENERATION,
    NBYTES,
    OFFSET,
    SECOND_KEY,
    KeyDigest,
    SlotRecord,
    SlotTable,
)
from mmcached.shm.segment.board import fenced
from mmcached.shm.segment.layout import ALIGNMENT, SLOT_WORDS
from mmcached.wire.errors import CacheFull
from mmcached.wire.handle import Handle
from scripts.verification import self_lease_words, self_lease_world
from scripts.verification.explorer import Violation
from scripts.verification.mutants import Mutant
from scripts.verification.replay import Machine
from scripts.verification.self_lease_words import KEYS, RUNNING, ByteLocks, Map, ModelStore
from scripts.verification.self_lease_world import (
    Attach,
    Clear,
    Discard,
    Poll,
    Put,
    Reader,
    Scenario,
    Setting,
    Taking,
    Writer,
    incarnation_of,
)
from scripts.verification.weak_memory import Order


@dataclass(frozen=True, eq=False)
class FencedReader(Reader):
    """Goes on when it has been fenced."""

    def look_once(self, machine: Machine, incarnation: int) -> None:
        machine.wait(self.setting.the_map.attached(self.reader_id), fenced(incarnation))
        super().look_once(machine, incarnation)


@dataclass(frozen=True, eq=False)
class HandedOn(Reader):
    """Hands a lease on: while the first reader holds one, the other takes it by its slot and generation."""

    def use(self, machine: Machine, entry: ReaderEntry, lease: Taking, key: int | None) -> None:
        if key is not None:
            machine.store_release(self.setting.the_map.hello(0), lease.handle.generation)
            self.read(machine, lease.handle, key)
            machine.store_release(self.setting.the_map.hello(0), 0)
        self.give_back(machine, entry, lease)

    def look_once(self, machine: Machine, incarnation: int) -> None:
        if self.reader_id == 0:
            super().look_once(machine, incarnation)
            return
        the_map = self.setting.the_map
        entry, look = the_map.reader_entry(self.reader_id, incarnation), the_map.lookup()
        if not (generation := machine.load(the_map.hello(0))):
            return
        handle = look.find_generation(0, generation)
        lease = None if handle is None else Taking(handle)
        is_taken = lease is not None and entry.take_beside(lease, look)
        if not is_taken and machine.load(the_map.hello(0)):
            raise Violation(f"I8: generation {generation} is under lease, and was not to be had")
        if lease is not None:
            super().use(machine, entry, lease, 0 if is_taken else None)


@dataclass(frozen=True, eq=False)
class ByToken(Reader):
    """Takes a lease of the first record as if it had been handed on; if that fails, once more."""

    def __call__(self, machine: Machine, carry: tuple[int, int, bool]) -> Hashable:
        RUNNING.machine = machine
        life, rounds, has_entry = carry
        is_taken = self.take_once(machine, incarnation_of(self.reader_id, life))
        return (life, rounds - 1, has_entry) if rounds > 1 and not is_taken else None

    def take_once(self, machine: Machine, incarnation: int) -> bool:
        entry, look = self.setting.the_map.reader_entry(self.reader_id, incarnation), self.setting.the_map.lookup()
        if (handle := look.find_generation(0, 1)) is None:
            return False
        with self.alone(machine, self.setting.the_map.taken_lock(self.reader_id)):
            is_taken = entry.take_beside(lease := Taking(handle), look)
        self.use(machine, entry, lease, 0 if is_taken else None)
        return is_taken


@dataclass(frozen=True, eq=False)
class ManyAtOnce(Reader):
    """Takes leases of all that is there at first, at once, and last of what is overwritten."""

    def look_once(self, machine: Machine, incarnation: int) -> None:
        the_map = self.setting.the_map
        entry, look = the_map.reader_entry(self.reader_id, incarnation), the_map.lookup()
        found = [look.find_generation(slot, 1 + slot) for slot in reversed(range(the_map.num_slots))]
        leases = [Taking(handle) for handle in found if handle is not None]
        for lease, is_taken in zip(leases, entry.take_leases(leases, look), strict=True):
            self.use(machine, entry, lease, 0 if is_taken else None)


_ONE = Setting()
_BY_TOKEN = Setting(script=(Put(1),), rounds=2, num_threads=2, reader=ByToken)
_HANDED_ON = Setting(Map(2, 1), script=(Discard(), Put(1)), reader=HandedOn)
_THREADS = Setting(script=(Put(1),), num_threads=2)
_KILLED_WRITER = replace(_ONE, num_kills=1, mortal=(0,))
_ADOPTED = replace(_KILLED_WRITER, script=(Put(1),), successor=(Put(0),))
_CLEARED = replace(_ADOPTED, script=(Clear(),), successor=(Put(1),))
_DISCARDED = replace(_ADOPTED, script=(Put(1), Discard()), num_keys=2)
_KILLED_READER = Setting(script=(Poll(), Attach(), Put(1)), num_lives=2, num_kills=1, mortal=(1,))
_HELLO = Setting(script=(Put(0), Attach(), Put(0)), is_attached=False)
_MANY = Setting(Map(1, 2), script=(Put(1),), reader=ManyAtOnce)
_FENCED = Setting(script=(Poll(), Put(0)), is_scribbled=True, reader=FencedReader)
_FENCED_ADOPTED = Setting(script=(Poll(),), successor=(Put(1),), num_kills=1, mortal=(0,), is_scribbled=True)
_SIZES = Setting(Map(1, 2, has_sizes=True), script=(Put(1, 2), Put(0)), num_keys=2)


def _both(name: str, setting: Setting) -> Iterator[Scenario]:
    for order in Order:
        yield Scenario(f"{name}, {order.value}", setting, order)


SMALL = (
    *_both("a reader looks while a slot is reused twice", _ONE),
    *_both("a record is discarded while a reader looks", replace(_ONE, script=(Discard(), Put(1)))),
    *_both("a reader attaches while a slot is reused", _HELLO),
    *_both("a fenced reader goes on", _FENCED),
    Scenario("the writer is killed, and its ring is adopted, x86-TSO", _ADOPTED, Order.TSO),
    *_both("a reader that is fenced reads on while its ring is adopted", _FENCED_ADOPTED),
    Scenario("the writer is killed while it clears the ring, x86-TSO", _CLEARED, Order.TSO),
    Scenario("a lease is handed on while its record is discarded, x86-TSO", _HANDED_ON, Order.TSO),
    Scenario("the writer is killed at any step, x86-TSO", _KILLED_WRITER, Order.TSO),
    Scenario("a reader is killed at any step, and its successor reads, x86-TSO", _KILLED_READER, Order.TSO),
    Scenario("records of two sizes and keys, x86-TSO", _SIZES, Order.TSO),
    Scenario("a reader takes two leases at once, x86-TSO", _MANY, Order.TSO),
)

LARGE = (
    *_both("the writer is killed after a discard", _DISCARDED),
    Scenario("the writer is killed at any step, weak", _KILLED_WRITER, Order.WEAK),
    Scenario("a reader is killed at any step, and its successor reads, weak", _KILLED_READER, Order.WEAK),
    *_both(
        "a reader is killed at any step, and its successor reads what is put",
        replace(_KILLED_READER, script=(Put(1), Poll(), Attach(), Put(0))),
    ),
    *_both("two threads of a reader", _THREADS),
    Scenario("the writer is killed, and its ring is adopted, weak", _ADOPTED, Order.WEAK),
    Scenario("the writer is killed while it clears the ring, weak", _CLEARED, Order.WEAK),
    Scenario("records of two sizes and keys, weak", _SIZES, Order.WEAK),
    Scenario("a reader takes two leases at once, weak", _MANY, Order.WEAK),
    Scenario("a lease is handed on while its record is discarded, weak", _HANDED_ON, Order.WEAK),
    Scenario(
        "a lease is handed on while its slot is to be reused, x86-TSO",
        replace(_HANDED_ON, script=(Put(1), Put(0))),
        Order.TSO,
    ),
    Scenario("two threads of a reader to which a lease was handed on, x86-TSO", _BY_TOKEN, Order.TSO),
    *_both("two readers look while a slot is reused twice", Setting(Map(2, 1))),
    *_both("a reader looks three times", replace(_ONE, rounds=3)),
    *_both(
        "two readers, two slots, a kill of any process at any step",
        Setting(Map(2, 2), script=(Put(1),), num_kills=1, mortal=(0, 1, 2)),
    ),
)

# ---- what is removed


class StoreWithoutFence(ModelStore):
    def full_fence(self) -> None:
        pass


class StoreWithoutRelease(ModelStore):
    def store_release(self, words: Any, index: int, value: int) -> None:
        words[index] = value


def take_after_check(
    store: Any, entry: Any, look: Lookup, reader: tuple[int, int], leases: Sequence[Taking]
) -> list[bool]:
    hold = [look.holds(lease.handle) and look.is_attached(*reader) for lease in leases]
    take(store, entry, look, reader, leases)
    return hold


def take_with_an_early_fence(
    store: Any, entry: Any, look: Lookup, reader: tuple[int, int], leases: Sequence[Taking]
) -> list[bool]:
    """Count the last lease only after the fence."""
    first = take(store, entry, look, reader, leases[:-1])
    return first + take(StoreWithoutFence(), entry, look, reader, leases[-1:])


class ReaderThatGivesBackEarly(Reader):
    def use(self, machine: Machine, entry: ReaderEntry, lease: Taking, key: int | None) -> None:
        self.give_back(machine, entry, lease)
        if key is not None:
            self.read(machine, lease.handle, key)


class ReaderThatKeepsAFormerLife(Reader):
    """Leaves what a former life had under lease as it is."""

    def end_former_life(self, machine: Machine) -> None:
        pass


class ReaderThatDoesNotWait(Reader):
    def wait_until_attached(self, machine: Machine, incarnation: int) -> None:
        pass


class TableThatLooksAtTakenFirst(LeaseTable):
    def is_pinned(self, slot: int) -> bool:
        return any(self._is_held_by(reader_id, slot) for reader_id in self.incarnations())

    def _is_held_by(self, reader_id: int, slot: int) -> bool:
        taken = self._counts.item(reader_id, slot, 1)
        returned = self._counts.item(reader_id, slot, 0)
        return taken != returned


class SlotsThatStayRetired(SlotTable):
    def restore(self, slot: int) -> None:
        pass


class SlotsThatAreNotSealed(SlotTable):
    def seal(self, slot: int) -> None:
        pass


class SlotsThatAreSealedAtOnce(SlotTable):
    def retire(self, slot: int) -> None:
        super().retire(slot)
        super().seal(slot)


class SlotsThatAreNotErased(SlotTable):
    def erase(self, slot: int) -> None:
        pass


class SlotsThatAreRestoredLate(SlotTable):
    """Make what was retired in vain valid again only when the next record is written."""

    def __init__(self, words: memoryview) -> None:
        super().__init__(words)
        self._late: list[int] = []

    def restore(self, slot: int) -> None:
        self._late.append(slot)

    def fill(self, slot: int, record: SlotRecord) -> None:
        super().fill(slot, record)
        while self._late:
            super().restore(self._late.pop())


class WriterThatPublishesFirst(Writer):
    def put(self, ring: Any, key: int, num_units: int = 1) -> list[Handle]:
        try:
            claim = ring.claim(ALIGNMENT * num_units)
        except CacheFull:
            return []
        handle = ring.commit(claim, KEYS[key])
        self.fill(claim, key)
        return [handle]


class LookupWithoutKey(Lookup):
    """Believe the index."""

    def find(self, key: KeyDigest) -> Handle | None:
        found = (super(LookupWithoutKey, self).find(each) for each in KEYS)
        return next((handle for handle in found if handle is not None), None)


def _slots_of(index: Any, key: KeyDigest) -> Iterable[int]:
    return vars(lookup)["slots_of"](index, key)  # type: ignore[no-any-return]  # the model's


class LookupInAnyOrder(Lookup):
    """Read a whole record at once."""

    def find(self, key: KeyDigest) -> Handle | None:
        names = self._names
        for slot in _slots_of(self._index, key):
            mark, offset, nbytes, _, *found = self._slots[SLOT_WORDS * slot : SLOT_WORDS * slot + CHECK]
            if mark & 1 and tuple(found) == key:
                return Handle(names.ring_id, names.epoch, slot, mark >> 1, offset, nbytes)
        return None


class LookupThatReadsTheKeyFirst(Lookup):
    def find(self, key: KeyDigest) -> Handle | None:
        for slot in _slots_of(self._index, key):
            found = tuple(self._slots[SLOT_WORDS * slot + word] for word in (FIRST_KEY, SECOND_KEY))
            mark, offset, nbytes = (self._slots[SLOT_WORDS * slot + word] for word in (GENERATION, OFFSET, NBYTES))
            if mark & 1 and found == key:
                return Handle(self._names.ring_id, self._names.epoch, slot, mark >> 1, offset, nbytes)
        return None


class LookupWithoutGeneration(Lookup):
    def holds(self, handle: Handle) -> bool:
        return bool(self._slots[SLOT_WORDS * handle.slot] & 1)


class ReaderWithoutLock(Reader):
    """Take and give back in several threads at a time."""

    def alone(self, machine: Machine, lock: int) -> contextlib.AbstractContextManager[None]:
        return contextlib.nullcontext()


class LookupWithoutAttached(Lookup):
    def is_attached(self, reader_id: int, incarnation: int) -> bool:
        return True


class TableThatForgetsFenced(LeaseTable):
    def adopt(self, reader_id: int, incarnation: int, *, is_fenced: bool, may_hold: Any) -> bool:
        return super().adopt(reader_id, incarnation, is_fenced=is_fenced, may_hold=tuple)


class WatchThatAdoptsNobody(reader_watch.ReaderWatch):
    def adopt(self, may_hold: Any) -> list[int]:
        return []


def adopt_without_islands(*parts: Any, **options: Any) -> None:
    adoption.adopt_chunks(*parts, **(options | {"is_leased": lambda slot: False}))


class ChunksThatCountWhatIsThere(ChunkTable):
    """Goes on from the last generation that is still there."""

    def adopt(self, current: Any, extents: Any, islands: Any, generation: int) -> None:
        super().adopt(current, extents, islands, max((handle.generation for handle in current), default=1))


class WatchThatGuesses(reader_watch.ReaderWatch):
    """Take a reader that is silent for dead."""

    def poll_deaths(self) -> list[ReaderStopped | ReaderVoided]:
        with mock.patch.object(ByteLocks, "is_free", return_value=True):
            return super().poll_deaths()


def _mutant(
    name: str, breaks: str, setting: Setting, *patches: tuple[Any, str, Any], order: Order = Order.TSO
) -> Mutant[Scenario]:
    return Mutant(name, Scenario(name, replace(setting, patches=patches), order), breaks)


_TWO_KEYS = replace(_ONE, num_keys=2, script=(Put(1),))
MUTANTS = (
    _mutant(
        "a reader does not fence before it looks again",
        "I1",
        _ONE,
        (reader_entry, "require_word_store", StoreWithoutFence),
    ),
    _mutant(
        "the writer does not fence before it counts",
        "I1",
        _ONE,
        (current_records, "require_word_store", StoreWithoutFence),
    ),
    _mutant(
        "the last lease of many is counted after the fence",
        "I1",
        _MANY,
        (reader_entry, "take", take_with_an_early_fence),
    ),
    _mutant("a reader looks again before it takes", "I1", _ONE, (reader_entry, "take", take_after_check)),
    _mutant(
        "a reader gives back before its last read", "I1", _ONE, (self_lease_world, "Reader", ReaderThatGivesBackEarly)
    ),
    _mutant(
        *("a reader gives back with a plain store, weak", "I1", _ONE),
        (reader_entry, "require_word_store", StoreWithoutRelease),
        order=Order.WEAK,
    ),
    _mutant(
        "taken is counted before returned", "I1", _BY_TOKEN, (ring_readers, "LeaseTable", TableThatLooksAtTakenFirst)
    ),
    _mutant("threads of a reader count side by side", "I3", _THREADS, (self_lease_world, "Reader", ReaderWithoutLock)),
    _mutant(
        "what was retired in vain is not restored", "I7", _ONE, (current_records, "SlotTable", SlotsThatStayRetired)
    ),
    _mutant(
        "what is overwritten is not sealed", "I1", _HANDED_ON, (current_records, "SlotTable", SlotsThatAreNotSealed)
    ),
    _mutant("a slot is sealed at once", "I8", _HANDED_ON, (current_records, "SlotTable", SlotsThatAreSealedAtOnce)),
    _mutant(
        *("what was retired in vain is restored after the next record", "I7"),
        replace(_SIZES, the_map=Map(1, 3, has_sizes=True), script=(Put(1, 2), Put(1))),
        (current_records, "SlotTable", SlotsThatAreRestoredLate),
    ),
    _mutant("what is overwritten is not erased", "I7", _SIZES, (current_records, "SlotTable", SlotsThatAreNotErased)),
    _mutant(
        "a record is published before its payload", "I1", _ONE, (self_lease_world, "Writer", WriterThatPublishesFirst)
    ),
    _mutant(
        *("a record is published with a plain store, weak", "I1", _ONE),
        (slot_table, "require_word_store", StoreWithoutRelease),
        order=Order.WEAK,
    ),
    _mutant("the key's digest is not looked at", "I1", _TWO_KEYS, (self_lease_words, "Lookup", LookupWithoutKey)),
    _mutant(
        *("the generation is not read first, weak", "I1", _TWO_KEYS),
        (self_lease_words, "Lookup", LookupInAnyOrder),
        order=Order.WEAK,
    ),
    _mutant(
        "the key is read before the generation",
        "I1",
        _TWO_KEYS,
        (self_lease_words, "Lookup", LookupThatReadsTheKeyFirst),
    ),
    _mutant("any generation will do", "I1", _ONE, (self_lease_words, "Lookup", LookupWithoutGeneration)),
    _mutant("a fenced reader takes leases", "I1", _FENCED, (self_lease_words, "Lookup", LookupWithoutAttached)),
    _mutant(
        "a reader takes leases before it is attached", "I1", _HELLO, (self_lease_world, "Reader", ReaderThatDoesNotWait)
    ),
    _mutant(
        "a reader is taken for dead after a silence",
        "I1",
        Setting(script=(Poll(), Put(1))),
        (ring_readers, "ReaderWatch", WatchThatGuesses),
    ),
    _mutant(
        "what a former life has left counts for the next",
        "I3",
        _KILLED_READER,
        (self_lease_world, "Reader", ReaderThatKeepsAFormerLife),
    ),
    _mutant("a successor forgets living readers", "I1", _ADOPTED, (ring_readers, "ReaderWatch", WatchThatAdoptsNobody)),
    _mutant(
        "a successor forgets what a fenced reader may hold",
        "I1",
        _FENCED_ADOPTED,
        (ring_readers, "LeaseTable", TableThatForgetsFenced),
    ),
    _mutant(
        "a successor frees what is leased", "I1", _ADOPTED, (current_records, "adopt_chunks", adopt_without_islands)
    ),
    _mutant("a successor does not fence", "I1", _CLEARED, (adoption, "require_word_store", StoreWithoutFence)),
    _mutant("a successor uses a generation again", "I1", _DISCARDED, (ring, "ChunkTable", ChunksThatCountWhatIsThere)),
)
