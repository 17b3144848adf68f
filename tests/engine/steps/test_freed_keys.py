"""A freed key is told until it is certain that it was heard, unless it is in use again."""

from __future__ import annotations

from mmcached.engine.steps.freed_keys import FreedKeys


def freed(*keys: str) -> FreedKeys[str]:
    made: FreedKeys[str] = FreedKeys()
    for key in keys:
        made.add(key)
    return made


def test_what_is_taken_is_gone_and_each_key_comes_once() -> None:
    keys = freed("b", "a", "b")
    assert keys.pending() == ["b", "a"]
    assert keys.take(is_certain=False) == ["b", "a"]
    assert keys.take(is_certain=False) == []
    assert keys.unconfirmed() == {"a", "b"}
    keys.confirm()
    assert keys.unconfirmed() == set()


def test_what_was_told_in_vain_comes_again_first() -> None:
    keys = freed("a")
    keys.take(is_certain=False)
    keys.add("b")
    keys.retell()
    assert keys.take(is_certain=False) == ["a", "b"]


def test_what_was_told_for_certain_never_comes_again() -> None:
    keys = freed("a")
    keys.take(is_certain=True)
    keys.retell()
    assert keys.take(is_certain=True) == []


def test_a_key_in_use_again_is_not_told() -> None:
    keys = freed("a", "b")
    keys.discard("a")
    keys.discard("never there")
    assert keys.take(is_certain=True) == ["b"]


def test_nothing_is_left_after_clearing() -> None:
    keys = freed("a")
    keys.take(is_certain=False)
    keys.add("b")
    keys.clear()
    keys.retell()
    assert keys.unconfirmed() == set()
