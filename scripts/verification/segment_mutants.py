"""Removes one rule at a time from a store of several segments."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from mmcached.shm.ring import lookup, slot_table
from scripts.verification import segment_scenarios as scenarios
from scripts.verification.mutants import Mutant
from scripts.verification.replay import Machine
from scripts.verification.segment_frontend import KEPT, Frontend
from scripts.verification.segment_peers import Reader, Writer, Writing
from scripts.verification.segment_room import Move, Row
from scripts.verification.segment_world import Scenario, Setting
from scripts.verification.self_lease_scenarios import StoreWithoutRelease
from scripts.verification.weak_memory import Order

# ---- room


class SealsWithoutALook(Frontend):
    def seal(self, slot: int) -> bool:
        return True


class GrantsBeforeTheSeal(Frontend):
    def vacate(self, row: Row) -> bool:
        self.release(row.place)
        self.receive(1)
        return super().vacate(row)


class GrantsBeforeItErases(Frontend):
    def vacate(self, row: Row) -> bool:
        is_sealed = self.seal(row.slot)
        if is_sealed:
            self.release(row.place)
            self.receive(1)
            self.slots.erase(row.slot)
        return is_sealed


class GrantsTwice(Frontend):
    """Grants what it has granted, until a put of it has come."""

    def answer(self, writer: int, number: int, verdict: int) -> None:
        free = self.books.free
        super().answer(writer, number, verdict)
        self.books = self.books._replace(free=free)


class ForgetsRefusedPlaces(Frontend):
    def take_back(self, place: int) -> None:
        pass


class WriterBeyondItsGrants(Writer):
    """Begins anew with its first place when it has no other."""

    def hear(self, machine: Machine, state: Writing) -> Writing:
        state = super().hear(machine, state)
        first = frozenset(self.the_map.places(state.nursery)[:1])
        return state if state.places else state._replace(places=first)


class WriterThatUsesAgainWhatItSent(Writer):
    def left(self, places: frozenset[int], place: int) -> frozenset[int]:
        return places


class WriterThatSendsFirst(Writer):
    def fill(self, machine: Machine, state: Writing, place: int, content: int) -> None:
        pass

    def put(self, machine: Machine, state: Writing, key: int) -> Writing:
        place, number = max(state.places), len(state.sent)
        epoch = machine.load(self.the_map.word("epoch"))
        state = super().put(machine, state, key)
        super().fill(machine, state, place, self.content(epoch, number, key))
        return state


class WriterThatMixesNurseries(Writer):
    """Takes the grants in a new nursery for grants in its old one."""

    def take_grants(self, machine: Machine, state: Writing, nursery: int, mask: int) -> Writing:
        return super().take_grants(machine, state, nursery and state.nursery, mask)


# ---- nurseries


class AcceptsWhatItDidNotGrant(Frontend):
    def is_of(self, writer: int, place: int) -> bool:
        return True


class GrantsInADrainedNursery(Frontend):
    def drain(self, writer: int) -> None:
        if nursery := self.books.nurseries[writer - 1]:
            self.empty(nursery)


class RemovesOpenNurseries(Frontend):
    """Removes what is empty, though a put may come."""

    def receive(self, writer: int) -> None:
        for nursery in self.map.nurseries:
            self.empty(nursery)
        super().receive(writer)


class RemovesWhatIsFound(Frontend):
    def drain(self, writer: int) -> None:
        nursery = self.books.nurseries[writer - 1]
        super().drain(writer)
        self.say(0, "name", nursery)


class RemovesWhatIsLeased(Frontend):
    """Looks only for records that can be found."""

    def drop(self, row: Row | None) -> None:
        super().drop(row)
        for nursery in self.map.nurseries:
            is_found = any(each.is_valid and each.place in self.map.places(nursery) for each in self.rows())
            if nursery not in self.books.nurseries and not is_found:
                self.say(0, "name", nursery)


class PunchesWhatIsLeased(Frontend):
    """Gives the kernel back what cannot be found any more."""

    def drop(self, row: Row | None) -> None:
        super().drop(row)
        if row is not None:
            self.store(0, "bytes", row.place)


class UsesAnIdAgain(Frontend):
    def next_id(self) -> int:
        return next(nursery for nursery in self.map.nurseries if not self.load("name", nursery))


# ---- puts


class AnswersFirst(Frontend):
    def judge(self, writer: int, place: int, content: list[int], replaces: bool) -> bool:
        number = next(n for n in range(self.map.num_messages) if not self.load("answer", writer, n))
        self.answer(writer, number, KEPT)
        return super().judge(writer, place, content, replaces)


class TakesPutsOfOldEpochs(Frontend):
    def is_current(self, epoch: int) -> bool:
        return True


# ---- copies


class PublishesBeforeItCopies(Frontend):
    def copy(self, source: int, target: int) -> None:
        pass

    def end_move(self) -> None:
        move = self.books.move
        row = None if move is None else self.moved_row(move)
        super().end_move()
        if move is not None and row is not None:
            super().copy(row.place, move.place)


class DropsBeforeItPublishes(Frontend):
    def end_move(self) -> None:
        if self.books.move is not None:
            self.slots.retire(self.books.move.slot)
        super().end_move()

    def moved_row(self, move: Move) -> Row | None:
        return next(row for row in self.rows() if row.slot == move.slot)


class MovesTheIndexLast(Frontend):
    """Shows the copy only when the first record is no longer valid."""

    def show_instead(self, key: int, slot: int, new_slot: int) -> None:
        pass

    def end_move(self) -> None:
        super().end_move()
        for row in self.rows():
            if row.is_valid and not self.shown(row.key):
                self.show(row.key, row.slot)


class MovesTheIndexFirst(Frontend):
    """Shows a copy that is not valid yet."""

    def publish(self, slot: int, place: int, key: int, content: int) -> None:
        if self.books.move is not None:
            super().show_instead(key, self.books.move.slot, slot)
        super().publish(slot, place, key, content)

    def show_instead(self, key: int, slot: int, new_slot: int) -> None:
        pass


class MovesTheIndexPlainly(Frontend):
    def show_instead(self, key: int, slot: int, new_slot: int) -> None:
        self.store(new_slot + 1, "index", key, self.shown(key).index(slot + 1))


class MovesWhateverIsThere(Frontend):
    """Does not look whether the slot still holds what was copied."""

    def moved_row(self, move: Move) -> Row | None:
        return next((row for row in self.rows() if row.slot == move.slot), None)


class MovesWhatWasFlushed(Frontend):
    """Publishes a copy though its record has gone meanwhile."""

    def end_move(self) -> None:
        move, slot = self.books.move, self.free_slot()
        if move is None or slot is None or self.moved_row(move) is not None:
            super().end_move()
        else:
            content = self.load("content", move.generation)
            self.publish(slot, move.place, content & 15, content)
            self.show(content & 15, slot)


class ReaderThatTakesALostLeaseForAMiss(Reader):
    max_takes = 1


# ---- flush


class BeginsTheEpochFirst(Frontend):
    def flush(self) -> None:
        epoch = self.load("epoch") + 1
        self.say(epoch, "epoch")
        self.say(self.load("last generation"), "floor")
        super().collect()
        for row in list(self.rows()):
            self.drop(row)
        self.say(epoch, "flushed")


# ---- adoption


class AdoptsWithoutAFloor(Frontend):
    def floor(self) -> int:
        return 0


class AdoptsWithoutIslands(Frontend):
    """Takes a place for free in which nothing lies that can be found."""

    def occupied(self) -> set[int]:
        return {row.place for row in self.rows() if row.is_valid}


class AdoptsWithoutASeal(Frontend):
    def adopt(self) -> None:
        careless = SealsWithoutALook(self.machine, self.map, self.books)
        careless.adopt()
        self.books = careless.books


class AdoptsOpenNurseries(Frontend):
    """Grants in the nurseries of a dead frontend what no slot names."""

    def adopt(self) -> None:
        super().adopt()
        for writer in self.map.writers:
            if self.load("name", writer):
                self.set_nursery(writer, writer)
                self.own(set(self.map.places(writer)) - self.named_places(writer), granted=False)

    def empty(self, nursery: int) -> None:
        pass


class KeepsBoth(Frontend):
    """Keeps a record and its copy, as a successor."""

    def kept(self, rows: list[Row]) -> list[Row]:
        return [row for row in rows if row.is_valid and row.generation > self.floor()]


class RetiresBeforeItShows(Frontend):
    """Retires what it drops, as a successor, before the index shows what it keeps."""

    def adopt(self) -> None:
        rows = list(self.rows())
        kept = self.kept(rows)
        for row in rows:
            if row not in kept:
                self.slots.retire(row.slot)
        super().adopt()


class EmptiesWhatIsLeased(Frontend):
    """Takes a place for free that is named by no record that can be found."""

    def named_places(self, nursery: int) -> set[int]:
        places = self.map.places(nursery)
        return {row.place for row in self.rows() if row.is_valid and row.place in places}


def _mutant(name: str, breaks: str, setting: Setting, **actors: Any) -> Mutant[Scenario]:
    order = Order.WEAK if name.endswith(", weak") else Order.TSO
    return Mutant(name, Scenario(name, replace(setting, **actors), order), breaks)


MUTANTS = (
    _mutant("a place is granted without a seal", "I1", scenarios.REUSED, frontend=SealsWithoutALook),
    _mutant("a place is granted before the seal", "I1", scenarios.REUSED, frontend=GrantsBeforeTheSeal),
    _mutant("a place is granted before its slot is erased", "I4", scenarios.KILLED, frontend=GrantsBeforeItErases),
    _mutant("a place is granted twice", "I4", scenarios.OUT_OF_STEP, frontend=GrantsTwice),
    _mutant("the place of a refused put is forgotten", "I3", scenarios.SAME_KEY, frontend=ForgetsRefusedPlaces),
    _mutant("a writer fills what it was not granted", "I1", scenarios.REUSED, writer=WriterBeyondItsGrants),
    _mutant("a writer uses again what it has sent", "I7", scenarios.OUT_OF_STEP, writer=WriterThatUsesAgainWhatItSent),
    _mutant("a writer sends before it fills", "I1", scenarios.PUT, writer=WriterThatSendsFirst),
    _mutant(
        "a writer takes grants for those of another nursery", "I7", scenarios.DRAINED, writer=WriterThatMixesNurseries
    ),
    _mutant("a put of a drained nursery is accepted", "I7", scenarios.DRAINED, frontend=AcceptsWhatItDidNotGrant),
    _mutant("a place is granted in a drained nursery", "I7", scenarios.DRAINED, frontend=GrantsInADrainedNursery),
    _mutant("a nursery is removed that is empty and open", "I7", scenarios.OUT_OF_STEP, frontend=RemovesOpenNurseries),
    _mutant(
        "a nursery is removed while a record in it is found", "I10", scenarios.EVACUATED, frontend=RemovesWhatIsFound
    ),
    _mutant(
        "a nursery is removed while a record in it is leased", "I10", scenarios.REMOVED, frontend=RemovesWhatIsLeased
    ),
    _mutant("what is leased is given back to the kernel", "I1", scenarios.REMOVED, frontend=PunchesWhatIsLeased),
    _mutant("the id of a nursery is used again", "I7", scenarios.NEXT_NURSERY, frontend=UsesAnIdAgain),
    _mutant(
        *("a put is published with a plain store, weak", "I1", scenarios.PUT),
        patches=((slot_table, "require_word_store", StoreWithoutRelease),),
    ),
    _mutant("a put is answered before it is published", "I9", scenarios.PUT, frontend=AnswersFirst),
    _mutant("a put of an old epoch is kept", "I11", scenarios.FLUSHED_PUT, frontend=TakesPutsOfOldEpochs),
    _mutant("a copy is published before it is made", "I1", scenarios.MOVED, frontend=PublishesBeforeItCopies),
    _mutant("a record is dropped before its copy is published", "I9", scenarios.MOVED, frontend=DropsBeforeItPublishes),
    _mutant("the index is moved after a record was dropped", "I9", scenarios.MOVED, frontend=MovesTheIndexLast),
    _mutant("the index is moved before a copy is valid", "I9", scenarios.MOVED, frontend=MovesTheIndexFirst),
    _mutant("the index is moved with a plain store, weak", "I9", scenarios.MOVED, frontend=MovesTheIndexPlainly),
    _mutant("a copy is published of what was evicted", "I1", scenarios.MOVED_EVICTED, frontend=MovesWhateverIsThere),
    _mutant("a copy is published of what was flushed", "I11", scenarios.FLUSHED, frontend=MovesWhatWasFlushed),
    _mutant("a reader looks once", "I9", scenarios.MOVED, patches=((lookup, "MAX_LOOKS", 1),)),
    _mutant("a reader takes a lost lease for a miss", "I9", scenarios.MOVED, reader=ReaderThatTakesALostLeaseForAMiss),
    _mutant(
        "an epoch begins before the floor is raised", "I11", scenarios.FLUSHED_ADOPTED, frontend=BeginsTheEpochFirst
    ),
    _mutant("a successor keeps what was flushed", "I11", scenarios.FLUSHED_ADOPTED, frontend=AdoptsWithoutAFloor),
    _mutant("a successor keeps a record and its copy", "I12", scenarios.MOVED_ADOPTED, frontend=KeepsBoth),
    _mutant("a successor retires before the index shows", "I9", scenarios.MOVED_ADOPTED, frontend=RetiresBeforeItShows),
    _mutant("a successor empties a nursery of what is leased", "I10", scenarios.ADOPTED, frontend=EmptiesWhatIsLeased),
    _mutant("a successor frees what is leased", "I1", scenarios.ADOPTED_MAIN, frontend=AdoptsWithoutIslands),
    _mutant("a successor erases without a seal", "I1", scenarios.ADOPTED_MAIN, frontend=AdoptsWithoutASeal),
    _mutant(
        "a successor grants in the nurseries that it finds", "I4", scenarios.ADOPTED_PUTS, frontend=AdoptsOpenNurseries
    ),
)
