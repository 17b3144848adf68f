"""Scheduler and worker in one process, without sockets: what an engine computes, step by step."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch

from mmcached.engine.scheduling.scheduler import Scheduler
from mmcached.engine.server.item_frames import ItemFrames
from mmcached.engine.server.plan import build_plan
from mmcached.engine.steps.request import Request
from mmcached.gateway.processing.processor import GatewayItem
from mmcached.gateway.processing.prompt import expand
from mmcached.wire.config import ServiceConfig
from mmcached.wire.messages.engine import AddRequest, StepOutput
from mmcached.wire.messages.parts import Feature, Inline, Rows, RowsWanted, Sampling, TokenLogprob
from mmcached.wire.sockets.frames import Frame
from mmcached.worker.steps.runner import ModelRunner

CPU = torch.device("cpu")


class LocalEngine:
    """One engine with one worker. `logits` has the logits behind each sampled token, by request id."""

    def __init__(self, config: ServiceConfig) -> None:
        self.scheduler = Scheduler(config)
        self.runner = ModelRunner(config, rank=0, device=CPU)
        self.rows: dict[int, dict[str, list[torch.Tensor]]] = {}
        self.logits: dict[int, list[torch.Tensor]] = {}
        self.logprobs: dict[int, list[list[TokenLogprob]]] = {}
        self.num_computed = 0
        self._language = self.scheduler.caches.language
        self._items = ItemFrames(config)
        self._next_id = 0

    def add(
        self,
        prompt: Sequence[int],
        max_tokens: int,
        *,
        rows: Sequence[str] = (),
        sampling: Sampling | None = None,
        pictures: Sequence[tuple[str, GatewayItem]] = (),
    ) -> Request:
        """Queue a request; `pictures` are names and items, in the order of the prompt's placeholders."""
        self._next_id += 1
        prompt, features = self._with_pictures(prompt, pictures)
        request = Request(
            self._next_id,
            "generate",
            prompt,
            features,
            max_tokens=max_tokens,
            rows=RowsWanted(list(rows)) if rows else None,
            sampling=sampling,
            stop_token_ids=self._language.stop_token_ids,
        )
        self.scheduler.add_request(request)
        self.rows[request.request_id] = {}
        self.logits[request.request_id] = []
        self.logprobs[request.request_id] = []
        return request

    def step(self) -> bool:
        """Run one step; return whether there was one."""
        step = self.scheduler.schedule()
        if step is None:
            return False
        plan, frames = build_plan(step, self._items, engine_incarnation=1, worker_epoch=1)
        with _Recorded(self.runner) as logits:
            output, payload = self.runner.execute(plan, frames)
        assert isinstance(output, StepOutput), output
        for sampled, found in zip(output.sampled, logits, strict=True):
            self.logits[sampled.request_id].append(found)
            self.logprobs[sampled.request_id].append(sampled.logprobs)
        for made in output.rows:
            self._take(made.request_id, made.rows, payload)
        self.num_computed += sum(chunk.num_tokens for chunk in step.chunks)
        tokens = {sampled.request_id: sampled.token_id for sampled in output.sampled}
        self.scheduler.commit(step, tokens, output.prefix_report, output.missing)
        return True

    def run(self) -> None:
        while self.step():
            pass

    def preempt(self) -> None:
        """Let all running requests start over, with the tokens that they have, as after a worker's death."""
        self.scheduler.reset()
        self.runner.clear()

    def generate(self, prompt: Sequence[int], max_tokens: int, **settings: Any) -> Request:
        """Queue a request, as `add`, and run it to its end."""
        request = self.add(prompt, max_tokens, **settings)
        self.run()
        return request

    def rows_of(self, request: Request) -> Mapping[str, torch.Tensor]:
        return {key: torch.cat(parts) for key, parts in self.rows[request.request_id].items()}

    def _with_pictures(
        self, prompt: Sequence[int], pictures: Sequence[tuple[str, GatewayItem]]
    ) -> tuple[Sequence[int], list[Feature]]:
        """Return a prompt with all placeholders and its items, whose frames are kept for the plans."""
        numbers = [[item.num_embeds] for _, item in pictures]
        token_ids, offsets = expand(prompt, numbers, self._language.marks)
        frames: list[Frame] = []
        features = []
        for (name, item), offset in zip(pictures, offsets, strict=True):
            where = Inline(len(frames), len(item.encoded.frames()))
            frames += item.encoded.frames()
            number = item.num_embeds
            bound = self._language.num_bound(offset)
            features.append(Feature(name, "image", offset, number, number, item.encoded.nbytes, where, num_bound=bound))
        message = AddRequest(self._next_id, "generate", token_ids, features, 0, None)
        self._items.add(message, frames)
        return token_ids, features

    def _take(self, request_id: int, rows: Rows, payload: Sequence[Frame]) -> None:
        dtype: torch.dtype = getattr(torch, rows.tensor.dtype)
        data = torch.frombuffer(bytearray(payload[rows.tensor.frame]), dtype=dtype)
        self.rows[request_id].setdefault(rows.key, []).append(data.view(rows.tensor.shape))


class _Recorded:
    """Keeps the logits that a runner samples from."""

    def __init__(self, runner: ModelRunner) -> None:
        self._decoder: Any = runner._model.decoder
        self._found: list[torch.Tensor] = []

    def __enter__(self) -> list[torch.Tensor]:
        logits = self._decoder.logits

        def note(hidden_states: torch.Tensor) -> torch.Tensor:
            found: torch.Tensor = logits(hidden_states)
            self._found += list(found)
            return found

        self._decoder.logits = note
        return self._found

    def __exit__(self, *error: object) -> None:
        del self._decoder.logits
