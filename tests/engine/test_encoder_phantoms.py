"""No encoder output is listed that no worker has made: histories in which one was, with two ranks that do as told.

In vLLM 0.33, an image is allocated when its request is scheduled. If the request is set back later in the same pass,
the image leaves the step, but stays listed. Whoever is scheduled next with that image is a hit, nobody encodes it, and
the worker that is told to read it ends the engine ("Encoder cache miss"). Taking away what a request has allocated in
the pass cures that, and is wrong again if a second request has referred to it meanwhile.
"""

from __future__ import annotations

import pytest

from mmcached.engine import SharedEncoderCacheManager, make_encoder_cache_manager
from mmcached.engine.encoder.encoder_budget import EncoderCacheScope
from mmcached.engine.encoder.encoder_cache_table import EncoderCacheTable
from tests.engine.builders import encode
from tests.engine.encoder_mutants import KeepsWhatWasGivenUp, ListsWhatIsNotEncoded, LosesWhatOthersWaitFor
from tests.engine.integrity import check_encoder

SIZE = 20
REQUESTS = {"R": encode(1, ("image", 6)), "W": encode(2, ("image", 6)), "X": encode(3, ("another", 2))}
BY_ID = {request.request_id: request for request in REQUESTS.values()}

SET_BACK = "+X +R -R run +R run"
SET_BACK_AND_WANTED_BY_ANOTHER = "+X +R -R run +W run"
SET_BACK_AFTER_ANOTHER_HAS_REFERRED_TO_IT = "+R +W -R run +R run"
SET_BACK_ONE_AFTER_THE_OTHER = "+X +R +W -R -W run +W +R run"
SET_BACK_AND_BACK_AGAIN = "+R -R +W +R -W run"
WITHDRAWN_WITH_ANOTHER = "+R +W fail +W run"
HISTORIES = [
    SET_BACK,
    SET_BACK_AND_WANTED_BY_ANOTHER,
    SET_BACK_AFTER_ANOTHER_HAS_REFERRED_TO_IT,
    SET_BACK_ONE_AFTER_THE_OTHER,
    SET_BACK_AND_BACK_AGAIN,
    WITHDRAWN_WITH_ANOTHER,
]
"""Steps: requests come in (+) and are set back (-); then both ranks run the step, or the first runs and it fails."""


class MissedByRankError(Exception):
    """A rank was told to read what it does not hold."""


def play(table: EncoderCacheTable, history: str) -> None:
    """Lead a table through a history."""
    ranks: list[set[str]] = [set(), set()]
    reads: dict[str, str] = {}
    step_id = 0
    table.begin_step(step_id)
    for action in history.split():
        request = REQUESTS.get(action[1:])
        if action[0] == "+" and request is not None:
            if not table.check_and_update_cache(request, 0):
                assert table.can_allocate(request, 0)
                table.allocate(request, 0)
            reads[action[1:]] = table.entry_key(request, 0)
        elif action[0] == "-" and request is not None:
            del reads[action[1:]]
            table.free(request)
        else:
            encoded, freed = {reserved.key for reserved in table.reserved_inputs(BY_ID)}, table.take_freed()
            for held in ranks if action == "run" else ranks[:1]:
                held.difference_update(freed)
                held.update(encoded)
            if action == "run" and not all(held.issuperset(reads.values()) for held in ranks):
                raise MissedByRankError(reads)
            (table.commit if action == "run" else table.withdraw)(step_id)
            check_encoder(table)
            if action == "run":
                assert all(table.ready_keys() <= held for held in ranks)
            else:
                for name in reads:
                    table.free(REQUESTS[name])
            reads.clear()
            step_id += 1
            table.begin_step(step_id)


@pytest.mark.parametrize("scope", ["shared", "request"])
@pytest.mark.parametrize("history", HISTORIES)
def test_what_is_listed_has_been_encoded(history: str, scope: EncoderCacheScope) -> None:
    table = make_encoder_cache_manager(scope, SIZE)
    play(table, history)
    for request in REQUESTS.values():
        table.free(request)
    assert table.num_freeable_slots == SIZE


@pytest.mark.parametrize(
    ("mistake", "histories"),
    [
        (KeepsWhatWasGivenUp, [SET_BACK, SET_BACK_AND_WANTED_BY_ANOTHER, SET_BACK_ONE_AFTER_THE_OTHER]),
        (LosesWhatOthersWaitFor, [SET_BACK_AFTER_ANOTHER_HAS_REFERRED_TO_IT]),
        (ListsWhatIsNotEncoded, HISTORIES),
    ],
)
def test_the_published_mistakes_are_seen(mistake: type[SharedEncoderCacheManager], histories: list[str]) -> None:
    for history in histories:
        with pytest.raises(MissedByRankError):
            play(mistake(SIZE), history)
