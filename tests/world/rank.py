"""A real runner behind a wire, and the accidents that it can have.

    plan, frames ──copied──> runner ──> answer, frames ──copied──>        what was copied is overwritten afterwards
                               └── the tensors that the store is handed are overwritten as soon as it returns

So whoever keeps a view instead of a copy, on either side, has nonsense in it. A rank has the weights of the epoch that
its last plan named; its prefix store copies as late as the knobs say.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Literal, NamedTuple
from unittest import mock

import msgspec
import torch

from mmcached.cache.checkpoints.language import Language
from mmcached.wire.config import ServiceConfig
from mmcached.wire.errors import InvalidRequest
from mmcached.wire.messages.engine import FromWorker, StepFailed, StepOutput
from mmcached.wire.messages.worker import FromEngineToWorker, RunChunk, StepPlan
from mmcached.wire.sockets.frames import Frame, make_decoder
from mmcached.worker.encoders.reference import ReferenceEncoder
from mmcached.worker.hidden_states import KeySpec, TensorPrefixStore
from mmcached.worker.hidden_states.device_copy import transfer_for
from mmcached.worker.model.model import ReferenceModel
from mmcached.worker.steps.prefix_rows import PrefixRows
from mmcached.worker.steps.runner import ModelRunner
from mmcached.worker.steps.step_result import StepResult
from tests.worker.hidden_states.by_content.delayed_transfer import delayed
from tests.world.knobs import Knobs
from tests.world.plainly import model_in
from tests.world.shelf import Shelf

Point = Literal["encode", "embed", "forward", "pick", "write", "written"]
POINTS: Sequence[Point] = ("encode", "embed", "forward", "pick", "write", "written")

_CPU = torch.device("cpu")
_SHELF = Path("/shelf")
_encoder = msgspec.msgpack.Encoder()
_plans = make_decoder(FromEngineToWorker)
_results = make_decoder(FromWorker)


class Killed(BaseException):
    """The process of a rank has ended in the middle of a step: nothing in it can catch that."""


class Accident(NamedTuple):
    """Where in a step something goes wrong, and whether it ends the process or only the step."""

    point: Point
    kills: bool

    def happen(self) -> None:
        if self.kills:
            raise Killed(self.point)
        raise InvalidRequest("accident", self.point, "none")


class Rank:
    """One worker.

    Attributes:
        store: rank 0's prefix store, if there is one.
    """

    def __init__(
        self, knobs: Knobs, config: ServiceConfig, rank: int, *, worker_epoch: int, shelf: Shelf | None = None
    ) -> None:
        self.rank = rank
        self.worker_epoch = worker_epoch
        with mock.patch("mmcached.worker.steps.item_outputs.contact", return_value=shelf):
            self.runner = ModelRunner(config, rank=rank, device=_CPU, run_dir=_SHELF if shelf is not None else None)
        self.store: TensorPrefixStore | None = None
        if self.runner.prefix_store is not None:
            self.store = self.runner.prefix_store = _make_store(knobs, config, worker_epoch)
            self.runner._rows = PrefixRows(self.store)
        self._rows = self.runner._rows
        self._config = config
        self._use_weights(0)
        self._accident: Accident | None = None
        self._real_take = self._rows.add_rows
        self._rows.add_rows = self._take  # type: ignore[method-assign]

    def execute(
        self, plan: StepPlan, frames: Sequence[Frame], accident: Accident | None = None
    ) -> tuple[StepOutput | StepFailed, list[Frame]]:
        """Have a plan executed, as if it came through a socket.

        Raises:
            Killed: by the accident; this rank is no more.
        """
        plan = _plans.decode(_encoder.encode(plan))
        if plan.row_epoch != self._weights:
            self._use_weights(plan.row_epoch)
        lent = [bytearray(frame) for frame in frames]
        with self._hit_by(accident):
            answer, made = self.runner.execute(plan, lent)
        for frame in lent:
            frame[:] = bytes([0x5A]) * len(frame)
        return _results.decode(_encoder.encode(answer)), [bytes(frame) for frame in made]

    def _use_weights(self, epoch: int) -> None:
        model = model_in(self._config.model, epoch)
        self._weights = epoch
        reference = ReferenceModel(model, max_model_len=self._config.max_model_len, device=_CPU)
        self._items = self.runner._items.encoder = ReferenceEncoder(model, reference.encoder)
        if model.kind == "hf":
            from tests.hosts.transformers.plain_checkpoint import use_weights

            use_weights(self.runner._model.decoder, epoch)
        else:
            self.runner._model.decoder = reference.decoder

    def encoder_keys(self) -> list[str]:
        return self.runner.encoder_cache.keys()

    @contextmanager
    def _hit_by(self, accident: Accident | None) -> Iterator[None]:
        if accident is None or accident.point in ("write", "written"):
            self._accident = accident
            yield
            self._accident = None
            return
        part: Any = self._items if accident.point == "encode" else self.runner._model.decoder
        real = getattr(part, accident.point)

        def broken(*args: Any, **named: Any) -> None:
            real(*args, **named)
            accident.happen()

        setattr(part, accident.point, broken)
        try:
            yield
        finally:
            delattr(part, accident.point)

    def _take(self, chunks: Sequence[RunChunk], outputs: Mapping[str, torch.Tensor], made: StepResult) -> None:
        lent = _Torn({key: rows.clone() for key, rows in outputs.items()}, self._accident)
        try:
            self._real_take(chunks, lent, made)
            if self._accident is not None:
                self._accident.happen()
        finally:
            for rows in lent.values():
                rows.fill_(-7)


class _Torn(dict[str, torch.Tensor]):
    """Outputs as the store gets them. In a step that is going to fail they are wrong, and a killed write ends early."""

    def __init__(self, outputs: Mapping[str, torch.Tensor], accident: Accident | None) -> None:
        super().__init__(outputs)
        self._accident = accident

    def items(self) -> Any:
        for key, rows in super().items():
            if self._accident is None:
                yield key, rows
                continue
            yield key, torch.full_like(rows, -3)
            if self._accident.point == "write":
                self._accident.happen()


def _make_store(knobs: Knobs, config: ServiceConfig, worker_epoch: int) -> TensorPrefixStore:
    language = Language.of(config)
    dtype = getattr(torch, language.dtype)
    rng = random.Random(f"{knobs.seed} copies {worker_epoch}")
    return TensorPrefixStore(
        config.block_size,
        [KeySpec(key, (width,), dtype) for key, width in language.row_widths.items()],
        byte_budget=config.tensor_prefix_cache_bytes,
        staged_byte_limit=4096,
        transfer_for=delayed(lambda: rng.randint(0, knobs.delay)) if knobs.delay else transfer_for,
    )
