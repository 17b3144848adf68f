"""Which of the actors is asked: the one with the least to do, for us and for others."""

from __future__ import annotations

import pytest

from mmcached.wire.messages.parts import EncoderForm
from mmcached.worker.encoders.actor_table import ActorTable, Lost, Report, most_common
from tests.worker.encoders.fake_actors import FakeCall

FORM = EncoderForm("reference", {}, [])


class Named:
    def __init__(self, name: str) -> None:
        self.name = name

    def describe(self) -> FakeCall:
        return FakeCall(lambda: b"")

    def encode(self, record: object, num_embeds: int, output_bytes: int) -> FakeCall:
        return FakeCall(lambda: None, is_held=True)


def report(num_open: int = 0, fingerprint: str = "f") -> Report:
    return Report(fingerprint, FORM, 4, num_open)


def ask(table: ActorTable) -> str:
    name, _ = table.ask("f", lambda actor: FakeCall(lambda: None, is_held=True))
    return name


def test_the_least_loaded_is_asked_and_of_equals_each_in_turn() -> None:
    table = ActorTable()
    table.looked([(Named("a"), report(2)), (Named("b"), report(0)), (Named("c"), report(1))])
    assert [ask(table) for _ in range(6)] == ["b", "c", "b", "a", "c", "b"]


def test_what_others_have_open_there_counts() -> None:
    table = ActorTable()
    table.looked([(Named("a"), report()), (Named("b"), report())])
    assert ask(table) == "a"
    table.answered("b", 3)
    assert [ask(table), ask(table)] == ["a", "a"]
    table.answered("b", 0)
    assert ask(table) == "b"


def test_one_that_is_lost_is_asked_when_it_is_heard_of_again() -> None:
    table = ActorTable()
    heard = [(Named("a"), report()), (Named("b"), report(9))]
    table.looked(heard)
    table.lost("a")
    assert ask(table) == "b"
    table.looked(heard)
    assert ask(table) == "a"
    with pytest.raises(Lost):
        table.ask("another", lambda actor: FakeCall(lambda: None))


def test_most_agree_or_the_first_in_the_alphabet() -> None:
    assert most_common({"a": report(0, "x"), "b": report(0, "y"), "c": report(0, "x")}) == "x"
    assert most_common({"a": report(0, "y"), "b": report(0, "x")}) == "x"
