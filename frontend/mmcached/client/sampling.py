"""Checks how the tokens of a generation are chosen, and how many answers it has."""

from __future__ import annotations

import secrets
from collections.abc import Callable
from typing import Any

from msgspec.structs import replace

from mmcached.client.arguments import MAX_TOKEN_ID, checked_int, checked_real, invalid, is_sequence, is_unicode, text_of
from mmcached.wire.errors import InvalidRequest
from mmcached.wire.messages.frontend import Generate
from mmcached.wire.messages.parts import (
    MAX_LOGPROBS,
    MAX_SEED,
    MAX_STOP_CHARACTERS,
    MAX_STOP_STRINGS,
    MAX_STOP_TOKENS,
    Sampling,
)

MAX_ANSWERS = 64


def checked_sampling(sampling: Any) -> Sampling | None:
    """Return how tokens are chosen, with a seed."""
    if sampling is None:
        return None
    if not isinstance(sampling, Sampling):
        raise invalid("sampling", sampling, "None or Sampling(...)")

    def real(name: str, is_possible: Callable[[float], bool], limit: str) -> float:
        return checked_real(f"sampling.{name}", getattr(sampling, name), is_possible, limit)

    stops = sampling.stop_token_ids
    if not is_sequence(stops) or len(stops) > MAX_STOP_TOKENS:
        raise invalid("sampling.stop_token_ids", stops, f"a list of at most {MAX_STOP_TOKENS} token ids")
    strings = sampling.stop
    if not is_sequence(strings) or len(strings) > MAX_STOP_STRINGS:
        raise invalid("sampling.stop", strings, f"a list of at most {MAX_STOP_STRINGS} strings")
    seed = secrets.randbelow(MAX_SEED) if sampling.seed is None else sampling.seed
    return Sampling(
        temperature=real("temperature", lambda value: 0 <= value <= 100, "a number from 0 to 100"),
        top_k=checked_int("sampling.top_k", sampling.top_k, 0, MAX_TOKEN_ID),
        top_p=real("top_p", lambda value: 0 < value <= 1, "a number above 0 and at most 1"),
        min_p=real("min_p", lambda value: 0 <= value <= 1, "a number from 0 to 1"),
        repetition_penalty=real("repetition_penalty", lambda value: 0 < value <= 100, "a number above 0, at most 100"),
        seed=checked_int("sampling.seed", seed, 0, MAX_SEED),
        stop_token_ids=[
            checked_int(f"sampling.stop_token_ids[{index}]", stop, 0, MAX_TOKEN_ID) for index, stop in enumerate(stops)
        ],
        num_logprobs=checked_int("sampling.num_logprobs", sampling.num_logprobs, -1, MAX_LOGPROBS),
        stop=[_checked_stop(f"sampling.stop[{index}]", string) for index, string in enumerate(strings)],
    )


def _checked_stop(field: str, string: Any) -> str:
    text = text_of(string)
    if text is None or not 1 <= len(text) <= MAX_STOP_CHARACTERS or not is_unicode(text):
        raise invalid(field, string, f"Unicode text of 1 to {MAX_STOP_CHARACTERS} characters")
    return text


def checked_num_answers(n: Any, sampling: Sampling | None) -> int:
    """Return the number of answers; several answers without a temperature would be equal."""
    number = checked_int("n", n, 1, MAX_ANSWERS)
    if number > 1 and (sampling is None or sampling.temperature == 0):
        raise InvalidRequest("n", number, "1 without sampling.temperature: the answers would be equal")
    return number


def further_requests(request: Generate, n: int, next_id: Callable[[], int]) -> list[Generate]:
    """Return the requests of `n` answers without the first, with the next seeds; above the largest they begin at 0."""
    sampling = request.sampling
    if sampling is None or sampling.seed is None:
        return []
    seeds = [(sampling.seed + index) % (MAX_SEED + 1) for index in range(1, n)]
    return [replace(request, request_id=next_id(), sampling=replace(sampling, seed=seed)) for seed in seeds]
