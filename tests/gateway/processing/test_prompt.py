"""Prompts: markers, limits, placeholders."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mmcached.gateway.processing import prompt as prompt_module
from mmcached.gateway.processing.prompt import check_length, checked_ids, expand, tokenise
from mmcached.wire.errors import InvalidRequest
from mmcached.wire.vocabulary import (
    AUDIO_TOKEN_ID,
    BEGIN_TOKEN_ID,
    IMAGE_TOKEN_ID,
    MARKERS,
    VIDEO_TOKEN_ID,
    VOCABULARY_SIZE,
    Modality,
)

IMAGE_MARKER = MARKERS["image"]
LIMITS: dict[str, Any] = {"max_model_len": 100, "max_tokens": 10}


def test_text_becomes_bytes() -> None:
    assert tokenise("aé", {}, **LIMITS) == [BEGIN_TOKEN_ID, 97, 0xC3, 0xA9]


def test_markers_become_image_tokens() -> None:
    expected = [BEGIN_TOKEN_ID, IMAGE_TOKEN_ID, 97, IMAGE_TOKEN_ID, IMAGE_TOKEN_ID]
    assert tokenise("<image>a<image><image>", {"image": 3}, **LIMITS) == expected


def test_each_modality_has_its_marker() -> None:
    numbers: dict[Modality, int] = {"image": 1, "video": 2, "audio": 1}
    tokens = tokenise("<video><audio>a<image><video><films>", numbers, **LIMITS)
    expected = [BEGIN_TOKEN_ID, VIDEO_TOKEN_ID, AUDIO_TOKEN_ID, 97, IMAGE_TOKEN_ID, VIDEO_TOKEN_ID, *b"<films>"]
    assert tokens == expected
    with pytest.raises(InvalidRequest, match=r"2 video marker\(s\)"):
        tokenise("<video><video>", {"video": 1}, **LIMITS)


def test_a_clip_has_the_placeholders_of_all_its_slices() -> None:
    tokens, offsets = expand([VIDEO_TOKEN_ID, 9, IMAGE_TOKEN_ID, AUDIO_TOKEN_ID], [[2, 3], [1], [2]])
    assert tokens == [*[VIDEO_TOKEN_ID] * 5, 9, IMAGE_TOKEN_ID, AUDIO_TOKEN_ID, AUDIO_TOKEN_ID]
    assert offsets == [0, 2, 6, 7]


def test_ids_are_taken_as_they_are() -> None:
    token_ids = [5, IMAGE_TOKEN_ID, 0, AUDIO_TOKEN_ID]
    assert AUDIO_TOKEN_ID == VOCABULARY_SIZE - 1
    result = tokenise(token_ids, {"image": 1, "audio": 1}, **LIMITS)
    assert result == token_ids
    assert result is not token_ids


@pytest.mark.parametrize("prompt", ["", []])
def test_empty(prompt: Any) -> None:
    with pytest.raises(InvalidRequest, match="empty") as caught:
        tokenise(prompt, {}, **LIMITS)
    assert caught.value.details["field"] == "prompt"


@pytest.mark.parametrize(("prompt", "num_images"), [("a", 1), ("<image>", 0), ("<image><image>", 1), ([1, 258], 2)])
def test_markers_and_images_must_agree(prompt: Any, num_images: int) -> None:
    num_markers = prompt.count(IMAGE_MARKER if isinstance(prompt, str) else IMAGE_TOKEN_ID)
    with pytest.raises(InvalidRequest) as caught:
        tokenise(prompt, {"image": num_images}, **LIMITS)
    assert f"{num_markers} image marker" in str(caught.value)
    assert f"{num_images} image(s)" in str(caught.value)


@pytest.mark.parametrize("bad", [-1, VOCABULARY_SIZE, 2**40, True, 1.0, "1", None])
def test_ids_outside_the_vocabulary(bad: Any) -> None:
    with pytest.raises(InvalidRequest) as caught:
        tokenise([1, bad, 2], {}, **LIMITS)
    assert caught.value.details["field"] == "prompt[1]"
    assert str(VOCABULARY_SIZE) in str(caught.value)


def test_half_a_surrogate_pair() -> None:
    with pytest.raises(InvalidRequest, match="surrogate"):
        tokenise("a\ud800", {}, **LIMITS)


def test_too_long() -> None:
    assert len(tokenise("x" * 89, {}, **LIMITS)) == 90
    with pytest.raises(InvalidRequest) as caught:
        tokenise("x" * 90, {}, **LIMITS)
    assert caught.value.details["limit"] == "at most 100 together (max_model_len)"
    assert "91 tokens and 10 to generate" in str(caught.value)
    check_length(90, **LIMITS)
    with pytest.raises(InvalidRequest):
        check_length(91, **LIMITS)


def test_expand() -> None:
    tokens, offsets = expand([7, IMAGE_TOKEN_ID, 9, IMAGE_TOKEN_ID], [[3], [1]])
    assert tokens == [7, *[IMAGE_TOKEN_ID] * 3, 9, IMAGE_TOKEN_ID]
    assert offsets == [1, 5]


@pytest.mark.parametrize("num_images", [0, 2])
def test_images_must_agree_with_markers(num_images: int) -> None:
    with pytest.raises(InvalidRequest) as caught:
        expand([1, IMAGE_TOKEN_ID], [[2]] * num_images)
    assert "1 marker" in str(caught.value)
    assert f"{num_images} file(s)" in str(caught.value)


@given(
    st.lists(st.sampled_from(["<image>", "a", "<", "image>", "ä", "<imag"]), min_size=1), st.lists(st.integers(1, 9))
)
def test_expansion_properties(pieces: list[str], lengths: list[int]) -> None:
    text = "".join(pieces)
    num_images = text.count(IMAGE_MARKER)
    lengths = (lengths + [1] * num_images)[:num_images]
    tokens = tokenise(text, {"image": num_images}, max_model_len=10_000, max_tokens=0)
    expanded, offsets = expand(tokens, [[length] for length in lengths])
    assert len(expanded) == len(tokens) - num_images + sum(lengths)
    places = zip(offsets, lengths, strict=True)
    covered = [index for offset, length in places for index in range(offset, offset + length)]
    assert covered == [index for index, token in enumerate(expanded) if token == IMAGE_TOKEN_ID]
    others = bytes(token for token in expanded[1:] if token != IMAGE_TOKEN_ID)
    assert others == text.replace(IMAGE_MARKER, "").encode()


class _UnreadIds(list[int]):
    def __iter__(self) -> Iterator[int]:
        raise AssertionError("work was done")


@pytest.mark.parametrize("prompt", ["x" * 1000, _UnreadIds([1] * 1000)])
def test_the_length_is_looked_at_before_anything_is_done(
    prompt: str | list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(prompt_module, "_ANY_MARKER", None)
    with pytest.raises(InvalidRequest) as caught:
        tokenise(prompt, {}, max_model_len=999, max_tokens=1)
    assert caught.value.details["field"] == "prompt"
    assert "1000 long" in str(caught.value)


def test_markers_of_images_are_no_length() -> None:
    prompt = IMAGE_MARKER * 3 + "ab"
    assert len(tokenise(prompt, {"image": 3}, max_model_len=7, max_tokens=1)) == 6


# ---- prompts of a checkpoint


def checked(token_ids: list[int], *, pictures: int = 0, videos: int = 0) -> list[int]:
    numbers: dict[Modality, int] = {"image": pictures, "video": videos}
    return checked_ids(token_ids, numbers, {"image": 7}, vocabulary_size=100, max_model_len=20, max_tokens=4)


def test_a_checkpoints_prompt_has_its_own_markers() -> None:
    assert checked([1, IMAGE_TOKEN_ID - 200, 99]) == [1, IMAGE_TOKEN_ID - 200, 99]
    assert checked([1, 7, 3, 7], pictures=2) == [1, 7, 3, 7]
    assert expand([1, 7, 3, 7], [[2], [1, 1]], {"image": 7}) == ([1, 7, 7, 3, 7, 7], [1, 4, 5])
    assert expand([IMAGE_TOKEN_ID], [], {}) == ([IMAGE_TOKEN_ID], [])


@pytest.mark.parametrize(
    ("token_ids", "files", "field", "reason"),
    [
        ([], {}, "prompt", "must not be empty"),
        ([1, 100], {}, "prompt[1]", "must be a token id below 100"),
        ([1] * 17, {}, "prompt", "at most 20 together"),
        ([1, 7], {}, "prompt", "0 image"),
        ([1], {"pictures": 1}, "prompt", "1 image"),
    ],
)
def test_a_checkpoints_prompt_that_does_not_fit_is_refused(
    token_ids: list[int], files: dict[str, int], field: str, reason: str
) -> None:
    with pytest.raises(InvalidRequest) as caught:
        checked(token_ids, **files)
    assert caught.value.details["field"] == field
    assert reason in str(caught.value)
