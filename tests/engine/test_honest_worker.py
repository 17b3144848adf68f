"""Random workloads over tiny pools, run by honest workers: each token's context is its own prefix, and all finish."""

from __future__ import annotations

from typing import Any

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from mmcached.engine import Request, ScheduledStep, Scheduler
from mmcached.wire.config import ModelConfig, ServiceConfig
from tests.engine.builders import encode, generate, image
from tests.engine.honest_worker import HonestWorker, expected_output
from tests.house.drawing import examples

NUM_EMBEDS = {"a": 1, "b": 2, "c": 3, "d": 4}
MAX_MODEL_LEN = 24

# Prompts are built from few pieces, so that equal prefixes and equal images are common, at equal and at other places.
PIECES = st.lists(st.sampled_from([1, 2, 3, "a", "b", "c", "d"]), min_size=1, max_size=7)
ITEMS = st.lists(st.sampled_from(sorted(NUM_EMBEDS)), min_size=1, max_size=4)


@st.composite
def configs(draw: st.DrawFn) -> ServiceConfig:
    block_size = draw(st.sampled_from([1, 2, 4]))
    num_blocks_at_least = MAX_MODEL_LEN // block_size + 1
    fields: dict[str, Any] = {
        "block_size": block_size,
        "num_kv_blocks": draw(st.integers(num_blocks_at_least, num_blocks_at_least + 8)),
        "max_model_len": MAX_MODEL_LEN,
        "max_num_seqs": draw(st.integers(1, 4)),
        "max_num_batched_tokens": draw(st.sampled_from([4, 5, 9, 30])),
        "max_num_encoder_input_tokens": draw(st.sampled_from([0, 6, 20])),
        "encoder_cache_size": draw(st.sampled_from([0, 5, 8, 20])),
        "encoder_cache_scope": draw(st.sampled_from(["shared", "shared", "request"])),
        "disable_chunked_mm_input": draw(st.booleans()),
        "enable_prefix_caching": draw(st.sampled_from([True, True, True, False])),
        "model": ModelConfig(max_patches_per_image=max(NUM_EMBEDS.values())),
    }
    return ServiceConfig(**fields)


def build_generate(
    request_id: int, pieces: list[int | str], max_tokens: int, tenant: str, does_not_read: bool
) -> Request:
    token_ids: list[int] = []
    features = []
    for piece in pieces:
        if isinstance(piece, str):
            features.append(image(piece, len(token_ids), NUM_EMBEDS[piece]))
            token_ids += [0] * NUM_EMBEDS[piece]
        else:
            token_ids += [piece] * 2
    del token_ids[MAX_MODEL_LEN - max_tokens :]
    features = [feature for feature in features if feature.offset + feature.length <= len(token_ids)]
    return generate(
        request_id,
        token_ids,
        features,
        max_tokens=max_tokens,
        tenant=tenant,
        skip_reading_prefix_cache=does_not_read,
    )


class BooksUnderLoad(RuleBasedStateMachine):
    """A scheduler, two lock-step workers, and whatever may happen between them."""

    @initialize(config=configs())
    def start(self, config: ServiceConfig) -> None:
        self.scheduler = Scheduler(config)
        cache_size = self.scheduler.encoder_cache_manager.cache_size
        self.workers = [HonestWorker(config.block_size, cache_size) for _ in range(2)]
        self.in_flight: ScheduledStep | None = None
        self.requests: dict[int, Request] = {}
        self.emitted: dict[int, list[int]] = {}

    def add(self, request: Request) -> None:
        self.requests[request.request_id] = request
        self.scheduler.add_request(request)

    @rule(
        pieces=PIECES,
        max_tokens=st.integers(1, 4),
        tenant=st.sampled_from(["", "", "x"]),
        does_not_read=st.sampled_from([False, False, True]),
        copies=st.sampled_from([1, 1, 2]),
    )
    def add_generate(
        self, pieces: list[int | str], max_tokens: int, tenant: str, does_not_read: bool, copies: int
    ) -> None:
        for _ in range(copies):
            self.add(build_generate(len(self.requests), pieces, max_tokens, tenant, does_not_read))

    @rule(items=ITEMS)
    def add_encode(self, items: list[str]) -> None:
        self.add(encode(len(self.requests), *((name, NUM_EMBEDS[name]) for name in items)))

    @precondition(lambda self: self.in_flight is None)
    @rule()
    def schedule(self) -> None:
        self.in_flight = self.scheduler.schedule()
        assert (self.in_flight is not None) == self.scheduler.has_work()

    @precondition(lambda self: self.in_flight is not None)
    @rule()
    def commit(self) -> None:
        step, self.in_flight = self.in_flight, None
        assert step is not None
        sampled, other = (worker.run(step) for worker in self.workers)
        assert sampled == other
        for request, input_id, _ in step.emit:
            self.emitted.setdefault(request.request_id, []).append(input_id)
        for request in self.scheduler.commit(step, sampled):
            self.check_answer(request)

    @rule()
    def run_a_step(self) -> None:
        if self.in_flight is None:
            self.schedule()
        if self.in_flight is not None:
            self.commit()

    @precondition(lambda self: self.in_flight is not None)
    @rule(which_ran=st.sampled_from([(), (0,), (1,), (0, 1)]))
    def withdraw(self, which_ran: tuple[int, ...]) -> None:
        """A worker failed; the others may have done all of the step."""
        step, self.in_flight = self.in_flight, None
        assert step is not None
        for index in which_ran:
            self.workers[index].run(step)
        self.scheduler.withdraw(step)

    @precondition(lambda self: self.requests)
    @rule(data=st.data())
    def abort(self, data: st.DataObject) -> None:
        request_id = data.draw(st.integers(0, len(self.requests)))  # the last one is unknown
        was_finished = request_id in self.requests and self.requests[request_id].is_finished
        self.scheduler.abort(request_id)
        if request_id in self.requests and not was_finished:
            assert self.requests[request_id].is_finished

    @rule()
    def reset(self) -> None:
        self.in_flight = None
        for worker in self.workers:
            worker.clear()
        self.scheduler.reset()

    @invariant()
    def books_agree(self) -> None:
        if hasattr(self, "scheduler"):
            self.scheduler.check_integrity()

    def check_answer(self, request: Request) -> None:
        assert request.is_finished
        if request.kind == "encode":
            assert self.emitted[request.request_id] == list(range(len(request.features)))
        else:
            output = expected_output(request)
            assert request.output_token_ids == output
            assert request.finish_reason == ("length" if output[-1] != 257 else "stop")

    def teardown(self) -> None:
        """Whatever has happened: all that is left finishes, and then nothing is held."""
        if not hasattr(self, "scheduler"):
            return
        for _ in range(100 + 60 * len(self.requests)):
            self.run_a_step()
            if not self.scheduler.has_work():
                break
        assert all(request.is_finished for request in self.requests.values())
        assert self.scheduler.schedule() is None
        self.scheduler.check_integrity()
        assert self.scheduler.kv_cache_manager.usage == 0.0
        encoder = self.scheduler.encoder_cache_manager
        assert encoder.num_freeable_slots == encoder.cache_size


TestBooksUnderLoad = BooksUnderLoad.TestCase
TestBooksUnderLoad.settings = settings(max_examples=examples(150), stateful_step_count=50)
