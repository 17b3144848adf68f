"""Checks the token counts in a call of `allocate_slots`."""

from __future__ import annotations


def check_slot_counts(
    num_new: int, num_new_computed: int, num_external: int, *, num_draft: int, num_lookahead: int, num_in_flight: int
) -> None:
    """Raise `ValueError`, with the number and its limit, if a token count is invalid."""
    is_prefix = num_new_computed >= 0 and num_external >= 0
    if num_new > 0 and is_prefix and num_lookahead >= 0 and num_in_flight >= 0 and 0 <= num_draft <= num_new:
        return
    counts = {
        "num_new_tokens": num_new,
        "num_new_computed_tokens": num_new_computed,
        "num_external_computed_tokens": num_external,
        "num_draft_tokens": num_draft,
        "num_lookahead_tokens": num_lookahead,
        "num_in_flight_tokens": num_in_flight,
    }
    for name, value in counts.items():
        if value < 0:
            raise ValueError(f"{name} = {value}: at least 0")
    if num_draft > num_new:
        raise ValueError(f"num_draft_tokens = {num_draft}: at most num_new_tokens = {num_new}")
    if not num_new_computed and not num_external:
        raise ValueError("num_new_tokens = 0: at least 1 without a prefix hit or external tokens")
