"""Removes one rule at a time from a store of several segments."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from mmcached.shm.ring import slot_table
from scripts.verification import segment_scenarios as scenarios
from scripts.verification.mutants import Mutant
from scripts.verification.replay import Machine
from scripts.verification.segment_frontend import KEPT, Frontend
from scripts.verification.segment_jobs import Remove, TakeOver
from scripts.verification.segment_peers import Reader, Writer, Writing
from scripts.verification.segment_room import Move, Row
from scripts.verification.segment_words import MAIN
from scripts.verification.segment_world import Scenario, Setting
from scripts.verification.self_lease_scenarios import StoreWithoutRelease
from scripts.verification.weak_memory import Order

# ---- room


class SealsWithoutALook(Frontend):
    def seal(self, slot: int) -> bool:
        return True


class GrantsBeforeTheSeal(Frontend):
    def vacate(self, row: Row) -> bool:
        self.free(row.place)
        self.grant(1)
        return super().vacate(row)


class GrantsBeforeItErases(Frontend):
    def vacate(self, row: Row) -> bool:
        is_sealed = self.seal(row.slot)
        if is_sealed:
            self.free(row.place)
            self.grant(1)
            self.slots.erase(row.slot)
        return is_sealed


class CountsTheGrantFirst(Frontend):
    def write_grant(self, writer: int, number: int, place: int) -> None:
        self.say(number + 1, "num_grants", writer)
        self.store(place, "grant", writer, number % self.map.num_entries)


class CountsTheGrantPlainly(Frontend):
    def write_grant(self, writer: int, number: int, place: int) -> None:
        self.store(place, "grant", writer, number % self.map.num_entries)
        self.store(number + 1, "num_grants", writer)


class OverwritesGrants(Frontend):
    """Writes a grant where one lies that the writer may not have used."""

    def has_entry(self, writer: int) -> bool:
        return True


class FreesWhatWasPassedOver(Frontend):
    """Takes it that a writer uses its places in the order in which they were granted."""

    def judge(self, writer: int, number: int, place: int, content: list[int]) -> None:
        super().judge(writer, number, place, content)
        unused = self.books.unused[writer] or frozenset()
        self.set_unused(writer, frozenset(each for each in unused if each > place))
        self.free_rest(writer, self.books.unused[writer] or frozenset())


class ForgetsWhatWasLost(Frontend):
    """Frees nothing when a writer says what it has not used."""

    def free_rest(self, segment: int, used: frozenset[int]) -> None:
        if segment == MAIN:
            super().free_rest(segment, used)


class WriterBeyondItsGrants(Writer):
    """Begins anew with its first place when it has no other."""

    def take_grants(self, machine: Machine, state: Writing) -> Writing:
        state = super().take_grants(machine, state)
        return state if state.unused else state._replace(unused=frozenset({self.the_map.places(self.segment)[0]}))


class WriterThatReadsTheGrantFirst(Writer):
    def take_grants(self, machine: Machine, state: Writing) -> Writing:
        place = self.granted_place(machine, state.num_taken)
        if state.num_taken == machine.load(self.the_map.word("num_grants", self.segment)):
            return state
        return state._replace(num_taken=state.num_taken + 1, unused=state.unused | {place})


class WriterThatSendsFirst(Writer):
    def fill(self, machine: Machine, place: int, content: tuple[int, int, int, int]) -> None:
        pass

    def send(self, machine: Machine, state: Writing, place: int, content: tuple[int, int, int, int]) -> None:
        super().send(machine, state, place, content)
        super().fill(machine, place, content)


class WriterThatUsesAgainWhatItSent(Writer):
    """Takes back the place of a put that nobody has answered."""

    def hear(self, machine: Machine, state: Writing) -> Writing:
        if machine.load(self.the_map.word("answer", self.segment, state.num_sent - 1)) or state.waits_for is None:
            return state
        return state._replace(unused=state.unused | {state.waits_for})


# ---- puts


class AnswersFirst(Frontend):
    def judge(self, writer: int, number: int, place: int, content: list[int]) -> None:
        self.say(KEPT, "answer", writer, number)
        super().judge(writer, number, place, content)


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


class ShowsTheCopyLast(Frontend):
    """Puts the copy into the index only when the first record is no longer valid."""

    def show(self, slot: int, key: int) -> None:
        if self.books.move is None:
            super().show(slot, key)

    def end_move(self) -> None:
        super().end_move()
        for row in self.rows():
            super().show(row.slot, row.key)


class ShowsWhatIsValid(Frontend):
    """Puts a record into the index only when it is valid."""

    def publish(self, slot: int, place: int, key: int, content: int) -> None:
        super().publish(slot, place, key, content)
        super().show(slot, key)

    def show(self, slot: int, key: int) -> None:
        pass


class MovesWhateverIsThere(Frontend):
    """Does not look whether the slot still holds what was copied."""

    def moved_row(self, move: Move) -> Row | None:
        return next((row for row in self.rows() if row.slot == move.slot), None)


class HidesWithAPlainStore(Frontend):
    def hide(self, slot: int) -> None:
        self.store(0, "shown", slot)


class CountsNoCopies(Frontend):
    def count_copy(self) -> None:
        pass


class CountsTheCopyLast(CountsNoCopies):
    def end_move(self) -> None:
        super().end_move()
        Frontend.count_copy(self)


class ReaderThatBelievesAMiss(Reader):
    def is_sure(self, machine: Machine, num_copies: int) -> bool:
        return True


class ReaderThatTakesALostLeaseForAMiss(Reader):
    """Looks once, and does not look again when what it has found has gone before its lease."""

    max_looks = 1


# ---- segments


class TakesOverFromTheLiving(Frontend):
    def is_writer_dead(self, writer: int) -> bool:
        return True


class PublishesForTheDead(Frontend):
    def is_of(self, writer: int, place: int) -> bool:
        return True


class RemovesWhatIsFindable(Frontend):
    def is_named(self, segment: int) -> bool:
        return False


class RemovesWhatIsLeased(Frontend):
    """Looks only for records that can be found."""

    def is_named(self, segment: int) -> bool:
        return any(row.is_valid and row.place in self.map.places(segment) for row in self.rows())


class UsesAnIdAgain(Frontend):
    def segment_of(self, writer: int) -> int:
        return 1


# ---- flush


class MovesWhatWasFlushed(Frontend):
    """Publishes a copy though its record has gone meanwhile."""

    def end_move(self) -> None:
        move, slot = self.books.move, self.free_slot()
        if move is None or slot is None or self.moved_row(move) is not None:
            super().end_move()
        else:
            content = self.load("content", move.generation)
            self.publish(slot, move.place, content & 15, content)


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


class AdoptsWithoutCountingACopy(Frontend):
    def adopt(self) -> None:
        careless = CountsNoCopies(self.machine, self.map, self.books)
        careless.adopt()
        self.books = careless.books


class TrustsGrants(Frontend):
    """Frees what a writer has not, also where a record lies."""

    def free_rest(self, segment: int, used: frozenset[int]) -> None:
        for place in set(self.map.places(segment)) - used:
            self.free(place)


class TakesGrantsForUsed(Frontend):
    """Adopts all places in which nothing lies, though a writer may fill them."""

    def adopt_room(self) -> None:
        super().adopt_room()
        for writer in self.map.writers:
            self.free_rest(writer, frozenset())


class KeepsBoth(Frontend):
    """Keeps a record and its copy, as a successor."""

    def kept(self, rows: list[Row]) -> list[Row]:
        return [row for row in rows if row.is_valid and row.generation > self.floor()]


def _mutant(name: str, breaks: str, setting: Setting, *, order: Order = Order.TSO, **actors: Any) -> Mutant[Scenario]:
    return Mutant(name, Scenario(name, replace(setting, **actors), order), breaks)


MUTANTS = (
    _mutant("a place is granted without a seal", "I1", scenarios.REUSED, frontend=SealsWithoutALook),
    _mutant("a place is granted before the seal", "I1", scenarios.REUSED, frontend=GrantsBeforeTheSeal),
    _mutant(
        "a place is granted before its slot is erased", "I3", scenarios.ADOPTED_PUTS, frontend=GrantsBeforeItErases
    ),
    _mutant("a grant is counted before it is written", "I1", scenarios.FULL, frontend=CountsTheGrantFirst),
    _mutant(
        *("a grant is counted with a plain store, weak", "I1", scenarios.FULL),
        order=Order.WEAK,
        frontend=CountsTheGrantPlainly,
    ),
    _mutant("a grant is read before it is counted", "I1", scenarios.FULL, writer=WriterThatReadsTheGrantFirst),
    _mutant("a grant is overwritten that was not used", "I7", scenarios.ONE_ENTRY, frontend=OverwritesGrants),
    _mutant("a writer fills what it was not granted", "I1", scenarios.REUSED, writer=WriterBeyondItsGrants),
    _mutant("a writer uses again what it has sent", "I7", scenarios.ONE_ENTRY, writer=WriterThatUsesAgainWhatItSent),
    _mutant("a writer sends before it fills", "I1", scenarios.REUSED, writer=WriterThatSendsFirst, looks=((1,),)),
    _mutant("a place that was passed over is freed", "I7", scenarios.OUT_OF_ORDER, frontend=FreesWhatWasPassedOver),
    _mutant("what was lost with a frontend is forgotten", "I3", scenarios.LOST, frontend=ForgetsWhatWasLost),
    _mutant(
        *("a put is published with a plain store, weak", "I1", scenarios.FULL),
        order=Order.WEAK,
        looks=((1,),),
        patches=((slot_table, "require_word_store", StoreWithoutRelease),),
    ),
    _mutant("a put is answered before it is published", "I9", scenarios.REUSED, frontend=AnswersFirst, looks=((1,),)),
    _mutant("a put of an old epoch is kept", "I11", scenarios.FLUSHED_PUT, frontend=TakesPutsOfOldEpochs),
    _mutant("a copy is published before it is made", "I1", scenarios.MOVED, frontend=PublishesBeforeItCopies),
    _mutant("a record is dropped before its copy is published", "I9", scenarios.MOVED, frontend=DropsBeforeItPublishes),
    _mutant("a copy is shown after its record was dropped", "I9", scenarios.MOVED, frontend=ShowsTheCopyLast),
    _mutant("a copy is published of what was evicted", "I1", scenarios.MOVED_EVICTED, frontend=MovesWhateverIsThere),
    _mutant("a copy is published of what was flushed", "I11", scenarios.FLUSHED, frontend=MovesWhatWasFlushed),
    _mutant("a copy is counted when its record was dropped", "I9", scenarios.MOVED, frontend=CountsTheCopyLast),
    _mutant("a reader believes the first miss", "I9", scenarios.MOVED, reader=ReaderThatBelievesAMiss),
    _mutant("a reader takes a lost lease for a miss", "I9", scenarios.MOVED, reader=ReaderThatTakesALostLeaseForAMiss),
    _mutant(
        *("a segment is taken over while its writer lives", "I7", scenarios.TAKEN_OVER),
        frontend=TakesOverFromTheLiving,
        looks=((2,),),
        num_kills=0,
    ),
    _mutant(
        "a put is published after its segment was taken over", "I7", scenarios.TAKEN_OVER, frontend=PublishesForTheDead
    ),
    _mutant(
        "a segment is removed while a record in it is found",
        "I10",
        scenarios.EVACUATED,
        frontend=RemovesWhatIsFindable,
        script=(TakeOver(), Remove()),
    ),
    _mutant(
        "a segment is removed while a record in it is leased", "I10", scenarios.REMOVED, frontend=RemovesWhatIsLeased
    ),
    _mutant("the id of a segment is used again", "I1", scenarios.NEXT_SEGMENT, frontend=UsesAnIdAgain),
    _mutant(
        "an epoch begins before the floor is raised", "I11", scenarios.FLUSHED_ADOPTED, frontend=BeginsTheEpochFirst
    ),
    _mutant("a successor keeps what was flushed", "I11", scenarios.FLUSHED_ADOPTED, frontend=AdoptsWithoutAFloor),
    _mutant("a copy is shown after it is valid", "I9", scenarios.MOVED_ADOPTED, frontend=ShowsWhatIsValid),
    _mutant(
        *("a successor drops a record and does not count its copy", "I9", scenarios.MOVED_ADOPTED),
        frontend=AdoptsWithoutCountingACopy,
    ),
    _mutant(
        *("a successor hides a record with a plain store, weak", "I9", scenarios.MOVED_ADOPTED),
        order=Order.WEAK,
        frontend=HidesWithAPlainStore,
    ),
    _mutant("a successor frees what is leased", "I1", scenarios.ADOPTED_MAIN, frontend=AdoptsWithoutIslands),
    _mutant("a successor erases without a seal", "I1", scenarios.ADOPTED_MAIN, frontend=AdoptsWithoutASeal),
    _mutant(
        "a successor trusts grants and does not look at slots", "I3", scenarios.ADOPTED_ROOM, frontend=TrustsGrants
    ),
    _mutant("a successor takes what was granted for used", "I3", scenarios.ADOPTED_ROOM, frontend=TakesGrantsForUsed),
    _mutant("a successor keeps a record and its copy", "I12", scenarios.MOVED_ADOPTED, frontend=KeepsBoth),
)
