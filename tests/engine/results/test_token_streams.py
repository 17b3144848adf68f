"""TokenStreams: what a message would say, and that saying it is one thing, and its being queued another."""

from __future__ import annotations

from mmcached.engine.results.token_streams import TokenStreams
from mmcached.wire.messages.frontend import CommittedTokens
from tests.engine.builders import generate


def test_one_message_tells_of_all_streamed_generations_and_of_no_other() -> None:
    streams = TokenStreams()
    requests = [generate(request_id, 5, max_tokens=9) for request_id in (1, 2, 3)]
    for request in requests:
        request.append_output_token(70 + request.request_id)
    streams.open(1)
    streams.open(3)
    assert streams.untold(requests) == [CommittedTokens(1, 0, [71]), CommittedTokens(3, 0, [73])]


def test_what_was_not_queued_comes_with_the_next_step_and_what_was_comes_never_again() -> None:
    streams = TokenStreams()
    request = generate(1, 5, max_tokens=9)
    streams.open(1)
    for token in (7, 8):
        request.append_output_token(token)
        untold = streams.untold([request])
    assert untold == [CommittedTokens(1, 0, [7, 8])]
    streams.told(untold)
    request.num_computed_tokens = 0  # preempted: it is computed again, and has its tokens
    request.append_output_token(9)
    assert streams.untold([request]) == [CommittedTokens(1, 2, [9])]


def test_who_was_set_back_in_its_step_has_nothing_to_tell() -> None:
    streams = TokenStreams()
    request = generate(1, 5, max_tokens=9)
    streams.open(1)
    assert streams.untold([request]) == []
    request.append_output_token(7)
    streams.told(streams.untold([request]))
    assert streams.untold([request]) == []


def test_nothing_is_kept_of_those_that_are_over() -> None:
    streams = TokenStreams()
    streams.open(1)
    streams.forget(1)
    streams.forget(1)
    assert not streams
    assert streams.untold([generate(1, 5)]) == []
