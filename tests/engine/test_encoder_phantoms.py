"""No encoder output is listed that no worker has made: histories in which one was, with two workers that do as told.

In vLLM 0.33, an image is allocated when its request is scheduled. If the request is set back later in the same pass,
the image leaves the step, but stays listed. Whoever is scheduled next with that image is a hit, nobody encodes it, and
the worker that is told to read it ends the engine ("Encoder cache miss"). Taking away what a request has allocated in
the pass cures that, and is wrong again if a second request has referred to it meanwhile.
"""

from __future__ import annotations

from collections.abc import Callable

import pytest

from mmcached.engine import Request, SharedEncoderCacheManager, make_encoder_cache_manager
from mmcached.engine.encoder.encoder_budget import EncoderCacheScope
from mmcached.engine.encoder.encoder_cache_table import EncoderCacheTable
from tests.engine.builders import encode
from tests.engine.encoder_mutants import KeepsWhatWasGivenUp, ListsWhatIsNotEncoded, LosesWhatOthersWaitFor

SIZE = 20


class MissedByWorkerError(Exception):
    """A worker was told to read what it does not hold."""


class Engine:
    """A scheduler that does what its test says, and workers that hold what they have encoded."""

    def __init__(self, book: EncoderCacheTable) -> None:
        self.book = book
        self.outputs: list[set[str]] = [set(), set()]
        self._step_id = 0
        self._reads: dict[int, set[str]] = {}

    def begin(self) -> None:
        self._step_id += 1
        self._reads = {}
        self.book.begin_step(self._step_id)

    def schedule(self, *requests: Request) -> None:
        """Let requests read their first item in this step: a hit, or to be encoded."""
        for request in requests:
            if not self.book.check_and_update_cache(request, 0):
                assert self.book.can_allocate(request, 0)
                self.book.allocate(request, 0)
            self._reads[request.request_id] = {self.book.entry_key(request, 0)}

    def set_back(self, request: Request) -> None:
        """Take a request out of the step that is being built."""
        del self._reads[request.request_id]
        self.book.free(request)

    def run(self) -> None:
        encode_ = {reserved.key for reserved in self.book.reserved_inputs()}
        freed = self.book.take_freed()
        for outputs in self.outputs:
            outputs.difference_update(freed)
            outputs.update(encode_)
            for keys in self._reads.values():
                if not keys <= outputs:
                    raise MissedByWorkerError(keys - outputs)
        self.book.commit(self._step_id)
        self.book.check_integrity()
        for outputs in self.outputs:
            assert self.book.ready_keys() <= outputs

    def fail(self) -> None:
        """The first worker has done its part, the second not; everybody goes back."""
        self.outputs[0] -= set(self.book.take_freed())
        self.outputs[0] |= {reserved.key for reserved in self.book.reserved_inputs()}
        self.book.withdraw(self._step_id)
        self.book.check_integrity()


R, W, X = encode(1, ("image", 6)), encode(2, ("image", 6)), encode(3, ("another", 2))


def set_back_in_its_own_step(engine: Engine) -> None:
    engine.begin()
    engine.schedule(X, R)
    engine.set_back(R)
    engine.run()
    engine.begin()
    engine.schedule(R)
    engine.run()


def set_back_and_wanted_by_another(engine: Engine) -> None:
    engine.begin()
    engine.schedule(X, R)
    engine.set_back(R)
    engine.run()
    engine.begin()
    engine.schedule(W)
    engine.run()


def set_back_after_another_has_referred_to_it(engine: Engine) -> None:
    engine.begin()
    engine.schedule(R, W)
    engine.set_back(R)
    engine.run()
    engine.begin()
    engine.schedule(R)
    engine.run()


def set_back_one_after_the_other(engine: Engine) -> None:
    engine.begin()
    engine.schedule(X, R, W)
    engine.set_back(R)
    engine.set_back(W)
    engine.run()
    engine.begin()
    engine.schedule(W, R)
    engine.run()


def set_back_and_back_again(engine: Engine) -> None:
    """In one step: another takes the place of the one that was set back, and it comes back itself."""
    engine.begin()
    engine.schedule(R)
    engine.set_back(R)
    engine.schedule(W)
    engine.schedule(R)
    engine.set_back(W)
    engine.run()


def withdrawn_with_another(engine: Engine) -> None:
    engine.begin()
    engine.schedule(R, W)
    engine.fail()
    engine.book.free(R)
    engine.book.free(W)
    engine.begin()
    engine.schedule(W)
    engine.run()


HISTORIES = [
    set_back_in_its_own_step,
    set_back_and_wanted_by_another,
    set_back_after_another_has_referred_to_it,
    set_back_one_after_the_other,
    set_back_and_back_again,
    withdrawn_with_another,
]


@pytest.mark.parametrize("scope", ["shared", "request"])
@pytest.mark.parametrize("history", HISTORIES)
def test_what_is_listed_has_been_encoded(history: Callable[[Engine], None], scope: EncoderCacheScope) -> None:
    engine = Engine(make_encoder_cache_manager(scope, SIZE))
    history(engine)
    for request in (R, W, X):
        engine.book.free(request)
    assert engine.book.num_freeable_slots == SIZE


@pytest.mark.parametrize(
    ("mistake", "histories"),
    [
        (KeepsWhatWasGivenUp, [set_back_in_its_own_step, set_back_and_wanted_by_another, set_back_one_after_the_other]),
        (LosesWhatOthersWaitFor, [set_back_after_another_has_referred_to_it]),
        (ListsWhatIsNotEncoded, HISTORIES),
    ],
)
def test_the_published_mistakes_are_seen(
    mistake: type[SharedEncoderCacheManager], histories: list[Callable[[Engine], None]]
) -> None:
    for history in histories:
        with pytest.raises(MissedByWorkerError):
            history(Engine(mistake(SIZE)))
