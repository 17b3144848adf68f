"""Texts of answers: the same whatever comes at a time, whole characters, ended before the first stop string."""

from __future__ import annotations

from collections.abc import Sequence
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mmcached.cache.checkpoints.answer_text import AnswerText, first_stop, num_held

END = 256
PIECES = [b"a", b"b", b"ab", b"aba", b" b", b"\xc3", b"\xa9", b"\xe2\x82", b"\xac", b"\xff", b"caf\xc3", b"\xa9s", b""]
"""Tokens: some are parts of characters, one has no text."""


def decode(token_ids: Sequence[int]) -> str:
    return b"".join(PIECES[token_id] for token_id in token_ids if token_id != END).decode(errors="replace")


def strips(token_ids: Sequence[int]) -> str:
    """Decode as Llama's tokenizer does: without the first space."""
    return decode(token_ids).removeprefix(" ")


tokens = st.lists(st.integers(0, len(PIECES) - 1), max_size=20)
stops = st.lists(st.text("ab é€", min_size=1, max_size=4), max_size=3)


def given_in_pieces(text: AnswerText, token_ids: Sequence[int], seed: int) -> list[str]:
    random, given_, place = Random(seed), [], 0
    while place < len(token_ids):
        size = random.randrange(1, 4)
        given_.append(text.add(token_ids[place : place + size]))
        place += size
    return given_


def wanted(token_ids: Sequence[int], stop: Sequence[str]) -> tuple[str, int | None]:
    """Return the text, and the number of tokens at which a stop string ends it, from decoding each prefix anew."""
    for num in range(1, len(token_ids) + 1):
        whole = decode(token_ids[:num]).rstrip("\ufffd")
        if (place := first_stop(whole, stop)) is not None:
            return whole[:place], num
    return decode(token_ids), None


@given(tokens, stops, st.integers(0, 99))
def test_pieces_are_the_begin_of_the_text_which_depends_on_tokens_alone(
    token_ids: list[int], stop: list[str], seed: int
) -> None:
    text, num_tokens = wanted(token_ids, stop)
    streamed, at_once = AnswerText(decode, stop), AnswerText(decode, stop)
    pieces = given_in_pieces(streamed, token_ids, seed)
    assert streamed.finish(token_ids) == at_once.finish(token_ids) == text
    assert text.startswith("".join(pieces))
    assert streamed.finish(token_ids) == text, "asked again"
    one_by_one = AnswerText(decode, stop)
    ended = [
        num for num, token_id in enumerate(token_ids, 1) if one_by_one.add([token_id]) is None or one_by_one.is_stopped
    ]
    assert (ended[0] if ended else None) == num_tokens


@given(tokens, st.integers(0, 99))
def test_a_tokenizer_may_treat_the_first_token_in_another_way(token_ids: list[int], seed: int) -> None:
    text = AnswerText(strips)
    given_in_pieces(text, token_ids, seed)
    assert text.finish(token_ids) == strips(token_ids)


def test_what_could_become_a_stop_string_or_a_character_is_held_back() -> None:
    text = AnswerText(lambda ids: bytes(ids).decode(errors="replace"), ["</end>", "end."])
    assert [text.add(piece) for piece in (b"x <", b"/en", b"d", b" y \xe2\x82", b"\xac")] == [
        "x ",
        "",
        "",
        "</end y ",
        "€",
    ]
    assert text.add(b" the e") == " the "
    assert text.add(b"nd. and more") == ""
    assert text.is_stopped
    assert text.add(b"later") == ""
    assert text.finish(b"") == "x </end y € the "


def test_the_first_of_several_stop_strings_counts() -> None:
    text = AnswerText(lambda ids: bytes(ids).decode(), ["b", "abc"])
    assert text.finish(b"xabc") == "xa", "one token after the other: b comes first"
    assert first_stop("xabc", ["b", "abc"]) == 1
    assert first_stop("xabc", ["d"]) is None


def test_the_end_token_has_no_text_but_others_of_its_kind_before_it_do() -> None:
    text = AnswerText(decode, end_token_ids=frozenset({0}))
    assert text.finish([0, 1, 0]) == "ab"
    assert text.num_tokens == 2


@pytest.mark.parametrize(
    ("text", "stop", "held"),
    [("ab", ["bc"], 1), ("ab", ["abc", "b!"], 2), ("ab", ["ab"], 0), ("", ["a"], 0), ("a", [], 0)],
)
def test_the_longest_begin_of_a_stop_string_is_held(text: str, stop: list[str], held: int) -> None:
    assert num_held(text, stop) == held


def test_tokens_without_text_are_not_decoded_again_and_again() -> None:
    """A generation of thousands of special tokens would take the square of their number."""
    longest = 0

    def decode(token_ids: Sequence[int]) -> str:
        nonlocal longest
        longest = max(longest, len(token_ids))
        return bytes(each for each in token_ids if each < 256).decode(errors="replace")

    text = AnswerText(decode)
    assert text.add([*b"a", *[300] * 1000, *b"b"]) == "ab"
    assert text.finish([*b"a", *[300] * 1000, *b"b"]) == "ab"
    assert longest < 10
