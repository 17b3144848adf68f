"""Turns prompts into tokens: text or ids with one marker per image, video or sound, then with all placeholders.

    "see <image>!"   -> tokenise ->   BEGIN s e e _ IMG !   -> expand ->   BEGIN s e e _ IMG IMG IMG !

The reference model's tokens of text are its UTF-8 bytes, see `mmcached.wire.vocabulary`. The tokenizer of a checkpoint
makes others, and its prompts have the tokens of `marks` for files.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from itertools import chain

from mmcached.wire.errors import InvalidRequest
from mmcached.wire.vocabulary import BEGIN_TOKEN_ID, MARKERS, TOKEN_IDS, VOCABULARY_SIZE, Modality

FIELD = "prompt"
_MARKER_TO_TOKEN = {MARKERS[modality]: (token_id,) for modality, token_id in TOKEN_IDS.items()}
_ANY_MARKER = re.compile(f"({'|'.join(map(re.escape, _MARKER_TO_TOKEN))})")


def tokenise(
    prompt: str | Sequence[int], numbers: Mapping[Modality, int], *, max_model_len: int, max_tokens: int
) -> list[int]:
    """Return the token ids of a prompt, with one token per image, video and sound.

    Args:
        prompt: Text, in which `<image>`, `<video>` and `<audio>` mark files (a BEGIN is put in front); or token ids,
            which are not changed.
        numbers: Of files, by modality.
        max_model_len: Maximum tokens of the prompt and the `max_tokens` to be generated.
    Raises:
        InvalidRequest: The prompt is empty, not valid text, has an id outside the vocabulary or another number of
            markers than of files, or is too long even with one token per file.
    """
    if len(prompt) == 0:
        raise InvalidRequest(FIELD, "", "must not be empty")
    # A longer text cannot have fewer tokens, so no time is spent on it.
    extra = sum((len(MARKERS[modality]) - 1) * number for modality, number in numbers.items())
    longest = max_model_len + extra if isinstance(prompt, str) else max_model_len
    if len(prompt) > longest:
        raise InvalidRequest(FIELD, f"{len(prompt)} long", f"at most {longest} (max_model_len is {max_model_len})")
    token_ids = _from_text(prompt) if isinstance(prompt, str) else _from_ids(prompt)
    _check_markers(token_ids, numbers, TOKEN_IDS)
    check_length(len(token_ids), max_model_len=max_model_len, max_tokens=max_tokens)
    return token_ids


def checked_ids(
    token_ids: Sequence[int],
    numbers: Mapping[Modality, int],
    marks: Mapping[Modality, int],
    *,
    vocabulary_size: int,
    max_model_len: int,
    max_tokens: int,
) -> list[int]:
    """Return the token ids of a checkpoint's prompt, with one token of `marks` per file; raises as `tokenise`."""
    if not token_ids:
        raise InvalidRequest(FIELD, "", "must not be empty")
    check_length(len(token_ids), max_model_len=max_model_len, max_tokens=max_tokens)
    if max(token_ids) >= vocabulary_size:
        index = next(index for index, token_id in enumerate(token_ids) if token_id >= vocabulary_size)
        raise InvalidRequest(f"{FIELD}[{index}]", token_ids[index], f"must be a token id below {vocabulary_size}")
    _check_markers(token_ids, numbers, marks)
    return list(token_ids)


def text_of(token_ids: Sequence[int]) -> str:
    """Return the text of the reference model's tokens; bytes that are not UTF-8 become U+FFFD."""
    return bytes(token_id for token_id in token_ids if token_id < BEGIN_TOKEN_ID).decode(errors="replace")


def expand(
    token_ids: Sequence[int], lengths: Sequence[Sequence[int]], marks: Mapping[Modality, int] = TOKEN_IDS
) -> tuple[list[int], list[int]]:
    """Replace each marker by the placeholders of its items.

    Args:
        lengths: Number of placeholders of each item of each file, in the order of the prompt.
        marks: The marker of each modality.
    Returns:
        The token ids, and the index of each item's first placeholder.
    Raises:
        InvalidRequest: Another number of markers than of files.
    """
    markers = frozenset(marks.values())
    num_markers = sum(map(token_ids.count, markers))
    if num_markers != len(lengths):
        raise InvalidRequest(FIELD, f"{num_markers} marker(s)", f"{len(lengths)} file(s) came with it")
    expanded: list[int] = []
    offsets: list[int] = []
    remaining = iter(lengths)
    for token_id in token_ids:
        if token_id in markers:
            for length in next(remaining):
                offsets.append(len(expanded))
                expanded += [token_id] * length
        else:
            expanded.append(token_id)
    return expanded, offsets


def check_length(num_tokens: int, *, max_model_len: int, max_tokens: int) -> None:
    """Raise `InvalidRequest` if `num_tokens` and `max_tokens` together exceed `max_model_len`."""
    if num_tokens + max_tokens > max_model_len:
        wanted = f"{num_tokens} tokens and {max_tokens} to generate"
        raise InvalidRequest(FIELD, wanted, f"at most {max_model_len} together (max_model_len)")


def _check_markers(token_ids: Sequence[int], numbers: Mapping[Modality, int], marks: Mapping[Modality, int]) -> None:
    for modality, token_id in marks.items():
        num_markers, number = token_ids.count(token_id), numbers.get(modality, 0)
        if num_markers != number:
            raise InvalidRequest(FIELD, f"{num_markers} {modality} marker(s)", f"{number} {modality}(s) came with it")


def _from_text(text: str) -> list[int]:
    try:
        pieces = [_MARKER_TO_TOKEN.get(piece) or piece.encode() for piece in _ANY_MARKER.split(text)]
    except UnicodeEncodeError as error:
        raise InvalidRequest(FIELD, f"character {error.start}", "half of a surrogate pair is no text") from None
    return [BEGIN_TOKEN_ID, *chain.from_iterable(pieces)]


def _from_ids(token_ids: Sequence[int]) -> list[int]:
    for index, token_id in enumerate(token_ids):
        if type(token_id) is not int or not 0 <= token_id < VOCABULARY_SIZE:
            raise InvalidRequest(f"{FIELD}[{index}]", repr(token_id), f"must be a token id below {VOCABULARY_SIZE}")
    return list(token_ids)
