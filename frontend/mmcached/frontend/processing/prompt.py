"""Turns prompts into tokens: text or ids with one marker per image, then with every placeholder.

    "see <image>!"   -> tokenise ->   BEGIN s e e _ IMG !   -> expand ->   BEGIN s e e _ IMG IMG IMG !

The tokens of text are its UTF-8 bytes; see `mmcached.wire.vocabulary`. Knows nothing of images but their number, and of
what replaces their markers.
"""

from __future__ import annotations

from collections.abc import Sequence

from mmcached.wire.errors import InvalidRequest
from mmcached.wire.vocabulary import BEGIN_TOKEN_ID, IMAGE_MARKER, IMAGE_TOKEN_ID, VOCABULARY_SIZE

FIELD = "prompt"


def tokenise(prompt: str | Sequence[int], num_images: int, *, max_model_len: int, max_tokens: int) -> list[int]:
    """Return the token ids of a prompt, with one `IMAGE_TOKEN_ID` per image.

    Args:
        prompt: text, in which `<image>` marks an image (a BEGIN is put in front); or token ids, taken as they are.
        max_model_len: limit of tokens, of the prompt and the `max_tokens` to be generated.
    Raises:
        InvalidRequest: empty, no valid text, an id outside the vocabulary, another number of markers than of images, or
            hopelessly long: images still count one token each.
    """
    if len(prompt) == 0:
        raise InvalidRequest(FIELD, "", "must not be empty")
    # What is longer can have no fewer tokens, so no time is spent on it.
    longest = max_model_len + (len(IMAGE_MARKER) - 1) * num_images if isinstance(prompt, str) else max_model_len
    if len(prompt) > longest:
        raise InvalidRequest(FIELD, f"{len(prompt)} long", f"at most {longest} (max_model_len is {max_model_len})")
    token_ids = _from_text(prompt) if isinstance(prompt, str) else _from_ids(prompt)
    num_markers = token_ids.count(IMAGE_TOKEN_ID)
    if num_markers != num_images:
        raise InvalidRequest(FIELD, f"{num_markers} image marker(s)", f"{num_images} image(s) came with it")
    check_length(len(token_ids), max_model_len=max_model_len, max_tokens=max_tokens)
    return token_ids


def expand(token_ids: Sequence[int], lengths: Sequence[int]) -> tuple[list[int], list[int]]:
    """Replace each image marker by its placeholders.

    Args:
        lengths: number of placeholders of each image, in the order of the prompt.
    Returns:
        the token ids, and the index of each image's first placeholder.
    Raises:
        InvalidRequest: another number of markers than of lengths.
    """
    num_markers = token_ids.count(IMAGE_TOKEN_ID)
    if num_markers != len(lengths):
        raise InvalidRequest(FIELD, f"{num_markers} image marker(s)", f"{len(lengths)} image(s) came with it")
    expanded: list[int] = []
    offsets: list[int] = []
    remaining = iter(lengths)
    for token_id in token_ids:
        if token_id == IMAGE_TOKEN_ID:
            offsets.append(len(expanded))
            expanded += [IMAGE_TOKEN_ID] * next(remaining)
        else:
            expanded.append(token_id)
    return expanded, offsets


def check_length(num_tokens: int, *, max_model_len: int, max_tokens: int) -> None:
    """Raise InvalidRequest when the model cannot take a prompt of `num_tokens` and `max_tokens` more."""
    if num_tokens + max_tokens > max_model_len:
        wanted = f"{num_tokens} tokens and {max_tokens} to generate"
        raise InvalidRequest(FIELD, wanted, f"at most {max_model_len} together (max_model_len)")


def _from_text(text: str) -> list[int]:
    try:
        pieces = [piece.encode() for piece in text.split(IMAGE_MARKER)]
    except UnicodeEncodeError as error:
        raise InvalidRequest(FIELD, f"character {error.start}", "half of a surrogate pair is no text") from None
    token_ids = [BEGIN_TOKEN_ID, *pieces[0]]
    for piece in pieces[1:]:
        token_ids += (IMAGE_TOKEN_ID, *piece)
    return token_ids


def _from_ids(token_ids: Sequence[int]) -> list[int]:
    for index, token_id in enumerate(token_ids):
        if type(token_id) is not int or not 0 <= token_id < VOCABULARY_SIZE:
            raise InvalidRequest(f"{FIELD}[{index}]", repr(token_id), f"must be a token id below {VOCABULARY_SIZE}")
    return list(token_ids)
