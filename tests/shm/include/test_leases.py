"""The explorer looks at every state of the reader in C beside the ring's writer, and finds each rule's removal."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from scripts.verification.explorer import Violation
from scripts.verification.mutants import Mutant, notice
from scripts.verification.self_lease_scenarios import FencedReader, HandedOn
from scripts.verification.self_lease_words import Map
from scripts.verification.self_lease_world import Attach, Discard, Poll, Put, Scenario, Setting
from scripts.verification.weak_memory import Order
from tests.shm.include.compiling import HERE, Edit, compile_c
from tests.shm.include.modelled import ModelledReader

_HOLDS = "const uint64_t mark = MMC_LOAD(r->slots + MMC_SLOT_WORDS * record->slot);"
_COUNT = "mmc__add(r->entry + MMC_FIRST_COUNT + 2 * record->slot + 1, 1);"
_MARK = "MMC_LOAD_WORDS(copy, words, 1);"
_REST = "MMC_LOAD_WORDS(copy + 1, words + 1, MMC_SLOT_WORDS - 1);"
_KEY = "if (copy[MMC_FIRST_KEY] != digest[0] || copy[MMC_SECOND_KEY] != digest[1]) return MMC_DETACHED;"

ONE = Setting()
TWO_KEYS = Setting(num_keys=2, script=(Put(1),))
FENCED = Setting(script=(Poll(), Put(0)), is_scribbled=True, reader=FencedReader)
HANDED_ON = Setting(Map(2, 1), script=(Discard(), Put(1)), reader=HandedOn)
KILLED = Setting(script=(Poll(), Attach(), Put(1)), num_lives=2, num_kills=1, mortal=(1,))
SETTINGS = {
    "a slot is reused twice": ONE,
    "a record is discarded": replace(ONE, script=(Discard(), Put(1))),
    "another key's record": TWO_KEYS,
    "a fenced reader goes on": FENCED,
}

Removed = tuple[tuple[Edit, ...], Setting, Order]
MUTANTS: Sequence[Mutant[Removed]] = (
    Mutant("no fence before the slot is checked", (
        (("MMC_FULL_FENCE(); /* against", "/* against"),), ONE, Order.TSO), "I1"),
    Mutant("the slot is checked before the lease is counted", (
        ((_HOLDS, ""), (_COUNT, f"{_HOLDS} {_COUNT}")), ONE, Order.TSO), "I1"),
    Mutant("a lease ends with a plain store", (
        (("MMC_STORE_RELEASE(returned,", "MMC_STORE(returned,"),), ONE, Order.WEAK), "I1"),
    Mutant("the key's digest is not compared", (((_KEY, "(void)digest;"),), TWO_KEYS, Order.TSO), "I1"),
    Mutant("the generation is not read first", (
        ((_MARK, ""), (_REST, "MMC_LOAD_WORDS(copy, words, MMC_SLOT_WORDS);")), TWO_KEYS, Order.WEAK), "I1"),
    Mutant("the key is read before the generation", (
        ((_MARK, _REST), (f"0 */\n    {_REST}", f"0 */\n    {_MARK}")), TWO_KEYS, Order.TSO), "I1"),
    Mutant("any generation will do", (
        (("== (record->generation << 1 | 1);", "& 1;"),), ONE, Order.TSO), "I1"),
    Mutant("a fenced reader takes leases", (
        (("!mmc__is_attached(r) ? MMC_DETACHED : holds", "holds"),), FENCED, Order.TSO), "I1"),
    Mutant("a lease that does not hold is not given back", (
        (("if (outcome != MMC_OK) mmc__end_lease(r, lease);", ""),), ONE, Order.TSO), "I3"),
    Mutant("a lease of a retired record is not handed on", (
        (("(mark | (is_held ? 1 : 0))", "mark"),), HANDED_ON, Order.TSO), "I8"),
    Mutant("a lease of a sealed record is handed on", (
        (("(mark | (is_held ? 1 : 0))", "((mark & ~MMC_IS_SEALED) | 1)"),), HANDED_ON, Order.TSO), "I1"),
    Mutant("a former life's leases are not given back", (
        (("if (returned < taken) MMC_STORE(entry + word, taken);", ""),), KILLED, Order.TSO), "I3"),
)  # fmt: skip


def explore(reader: ModelledReader, setting: Setting, order: Order) -> None:
    finding = Scenario("in C", replace(setting, patches=reader.patches()), order).explore()
    finding.check()
    assert finding.is_exhausted


@pytest.fixture(scope="module")
def reader(tmp_path_factory: pytest.TempPathFactory) -> ModelledReader:
    return modelled(tmp_path_factory.mktemp("c") / "reader.so")


def modelled(library: Path, edits: Sequence[Edit] = ()) -> ModelledReader:
    return ModelledReader(compile_c(HERE / "modelled.c", library, "-O1", "-shared", "-fPIC", edits=edits))


@pytest.mark.parametrize("order", Order, ids=lambda order: order.value)
@pytest.mark.parametrize("name", SETTINGS)
def test_every_state_keeps_the_invariants(reader: ModelledReader, name: str, order: Order) -> None:
    explore(reader, SETTINGS[name], order)


def test_a_lease_is_handed_on_while_its_record_is_discarded(reader: ModelledReader) -> None:
    explore(reader, HANDED_ON, Order.TSO)


def test_a_reader_is_killed_at_any_step_and_its_successor_reads(reader: ModelledReader) -> None:
    explore(reader, KILLED, Order.TSO)


@pytest.mark.parametrize("mutant", MUTANTS, ids=str)
def test_a_missing_rule_is_found(mutant: Mutant[Removed], tmp_path: Path) -> None:
    edits, setting, order = mutant.subject
    without = modelled(tmp_path / "reader.so", edits)
    notice(mutant, [lambda _: explore(without, setting, order)], Violation)
