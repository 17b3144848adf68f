"""One of vLLM's own engines in this process, whose weights are written in all the ways that users have.

    python -m tests.hosts.vllm.engine_child    a line of JSON in: the command and its values; a line out: its result

The first line has `model`, the folder of a checkpoint, the arguments of vLLM's `LLM`, and `packs`: whether vLLM packs
the weights of linear layers, as it does on CPUs, where only `reload` can write them. Scheduler and worker are in
this process, as with trainers that share one with vLLM, so writes need no call. The weights of a part of the model are
those of the checkpoint times a power of two, which is exact in each dtype.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import sys
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file
from vllm import LLM, SamplingParams
from vllm.lora.request import LoRARequest
from vllm.model_executor.layers import utils as layer_utils
from vllm.v1.worker.gpu_model_runner import GPUModelRunner

STEP_ITEMS = "_batch_mm_inputs_from_scheduler"
"""The runner's method that says what the tower is given in a step; identifiers come first."""
GREEDY = SamplingParams(max_tokens=4, temperature=0, ignore_eos=True, logprobs=1)
BLOCK_ROWS = 32
PARTS: Mapping[str, Callable[[str], bool]] = {
    "head": lambda name: name.startswith("visual.blocks.0."),
    "rest": lambda name: name.startswith("visual.") and not name.startswith("visual.blocks.0."),
    "tower": lambda name: name.startswith("visual."),
    "linear": lambda name: name.startswith("visual.") and "_proj.weight" in name,
    "decoder": lambda name: not name.startswith("visual."),
}
"""Parts of a model of Qwen2.5-VL's class, by the names of their weights in a checkpoint and in vLLM."""


class Engine:
    """What the commands do; each is a method."""

    def __init__(self, model: str, *, packs: bool, **options: Any) -> None:
        self._encoded: list[str] = []
        if not packs:
            layer_utils.dispatch_cpu_unquantized_gemm = _multiply_in_blocks
        self._count_items()
        self._llm = LLM(model, **options)
        self._core = self._llm.llm_engine.engine_core.engine_core
        self._executor = self._core.model_executor
        self._runner = self._executor.driver_worker.worker.model_runner
        self._of_checkpoint = load_file(str(Path(model) / "model.safetensors"))
        self._base = {name: value.detach().clone() for name, value in self._model.named_parameters()}

    @property
    def _model(self) -> Any:
        return self._runner.get_model()

    def ask(
        self, messages: list[Any], adapter: str = "", mm_processor_kwargs: dict[str, Any] | None = None
    ) -> dict[str, Any]:
        """Return the answers, as tokens and their log-probabilities, and the bits of the items in the encoder cache."""
        further: dict[str, Any] = {"lora_request": _adapter(adapter), "mm_processor_kwargs": mm_processor_kwargs}
        done = self._llm.chat(_chats(messages), GREEDY, use_tqdm=False, **further)
        answers = [(list(each.outputs[0].token_ids), _logprobs(each.outputs[0])) for each in done]
        bits = {name: _digest(output) for name, output in self._runner.encoder_cache.items()}
        return {"answers": answers, "bits": bits, "encoded": self._take_encoded()}

    def sample(self, messages: list[Any], count: int) -> list[str]:
        """Draw `count` answers to each message; return the items that the tower has encoded, once for each time."""
        drawn = SamplingParams(n=count, max_tokens=4, temperature=1.0, ignore_eos=True)
        done = self._llm.chat(_chats(messages), drawn, use_tqdm=False)
        assert all(len(each.outputs) == count for each in done)
        return self._take_encoded()

    def interrupt(self, messages: list[Any], num_steps: int, **change: Any) -> None:
        """Begin to answer, write weights in the middle, and drop the requests after one more step.

        Not so after `reload_weights`: it empties the runner's encoder cache, and vLLM ends if a request needs it then.
        """
        ids = self._llm.enqueue_chat(_chats(messages), GREEDY, use_tqdm=False)
        for _ in range(num_steps):
            self._llm.llm_engine.step()
        self._set(**change)
        if change["way"] != "reload":
            self._llm.llm_engine.step()
        self._llm.llm_engine.abort_request(ids, internal=True)
        while self._llm.llm_engine.has_unfinished_requests():
            self._llm.llm_engine.step()
        self.forget(is_told=change["way"] in TOLD)

    def write(self, part: str, factor: float, way: str) -> None:
        """Set the weights of a part, and drop what was computed with the former ones.

        Args:
            way: One of `WAYS`.
        """
        self._set(part, factor, way)
        self.forget(is_told=way in TOLD)

    def forget(self, *, is_told: bool) -> None:
        """Drop what the engine has computed, with a call to its workers or without."""
        if is_told:
            self._llm.llm_engine.reset_encoder_cache()
        else:
            self._core.scheduler.reset_encoder_cache()
            self._runner.reset_encoder_cache()
        assert self._llm.reset_prefix_cache()

    def sleep(self, level: int) -> None:
        """Sleep; at level 2 the weights are gone, which vLLM does on a GPU only."""
        self._llm.sleep(level)
        if level == 2:
            for parameter in self._model.visual.parameters():
                parameter.data.zero_()

    def wake_up(self, tags: list[str] | None) -> None:
        self._llm.wake_up(tags)
        assert self._llm.reset_prefix_cache()

    def add_lora(self, adapter: str) -> None:
        self._llm.llm_engine.add_lora(_adapter(adapter))

    def remove_lora(self, adapter: str) -> None:
        self._llm.llm_engine.remove_lora(_adapter(adapter).lora_int_id)

    def prefix(self) -> str:
        """Return the key prefix of images; "" while nothing is shared."""
        connector = self._core.scheduler.ec_connector
        return "" if connector is None else connector._scheduler._prefix("image")

    def do(self, command: str, values: Mapping[str, Any]) -> Any:
        return getattr(self, command)(**values)

    # ---- how

    def _count_items(self) -> None:
        step_items = getattr(GPUModelRunner, STEP_ITEMS)

        def noted(runner: Any, scheduler_output: Any) -> Any:
            items = step_items(runner, scheduler_output)
            self._encoded += items[0]
            return items

        setattr(GPUModelRunner, STEP_ITEMS, noted)

    def _set(self, part: str, factor: float, way: str) -> None:
        WAYS[way](self, PARTS[part], factor)

    def _take_encoded(self) -> list[str]:
        encoded, self._encoded = self._encoded, []
        return encoded

    def _wanted(self, chosen: Callable[[str], bool], factor: float) -> Iterator[tuple[torch.nn.Parameter, Any]]:
        for name, parameter in self._model.named_parameters():
            if chosen(name):
                yield parameter, _times(self._base[name], factor)

    def _scaled(self, chosen: Callable[[str], bool], factor: float) -> list[tuple[str, torch.Tensor]]:
        return [(name, _times(value, factor)) for name, value in self._of_checkpoint.items() if chosen(name)]

    @torch.no_grad()
    def copy_in_place(self, chosen: Callable[[str], bool], factor: float) -> None:
        for parameter, value in self._wanted(chosen, factor):
            parameter.copy_(value)

    def copy_in_inference_mode(self, chosen: Callable[[str], bool], factor: float) -> None:
        with torch.inference_mode():
            self.copy_in_place(chosen, factor)

    def set_data(self, chosen: Callable[[str], bool], factor: float) -> None:
        for parameter, value in self._wanted(chosen, factor):
            parameter.data = value

    def copy_data(self, chosen: Callable[[str], bool], factor: float) -> None:
        for parameter, value in self._wanted(chosen, factor):
            parameter.data.copy_(value)

    def load(self, chosen: Callable[[str], bool], factor: float) -> None:
        self._model.load_weights(self._scaled(chosen, factor))

    def load_each(self, chosen: Callable[[str], bool], factor: float) -> None:
        for pair in self._scaled(chosen, factor):
            self._model.load_weights([pair])

    def call(self, chosen: Callable[[str], bool], factor: float) -> None:
        self._llm.collective_rpc(lambda worker: self.copy_data(chosen, factor))

    def apply(self, chosen: Callable[[str], bool], factor: float) -> None:
        self._llm.apply_model(lambda model: self.copy_data(chosen, factor))

    def reload(self, chosen: Callable[[str], bool], factor: float) -> None:
        weights = iter(self._scaled(chosen, factor))
        self._llm.collective_rpc("reload_weights", kwargs={"weights_iterator": weights})


WAYS: Mapping[str, Callable[[Engine, Callable[[str], bool], float], None]] = {
    "call": Engine.call,
    "apply": Engine.apply,
    "reload": Engine.reload,
    "load": Engine.load,
    "load each": Engine.load_each,
    "in place": Engine.copy_in_place,
    "inference mode": Engine.copy_in_inference_mode,
    "set data": Engine.set_data,
    "copy data": Engine.copy_data,
}
TOLD = frozenset({"copy data"})
"""Ways after which `/reset_encoder_cache` must be called, as docs/hosts/vllm.md says."""


def _multiply_in_blocks(layer: Any, remove_weight: bool) -> None:
    """Leave a layer's weights where they can be written; a row's product has the same bits in every batch."""

    def linear(rows: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None) -> torch.Tensor:
        flat = rows.reshape(-1, rows.shape[-1])
        padded = torch.nn.functional.pad(flat, (0, 0, 0, -len(flat) % BLOCK_ROWS))
        done = torch.cat([torch.nn.functional.linear(block, weight, bias) for block in torch.split(padded, BLOCK_ROWS)])
        return done[: len(flat)].reshape(*rows.shape[:-1], -1)

    layer.cpu_linear = linear


def _times(value: torch.Tensor, factor: float) -> torch.Tensor:
    return value * factor if factor else torch.zeros_like(value)


def _chats(messages: list[Any]) -> list[Any]:
    return [[{"role": "user", "content": content}] for content in messages]


def _adapter(path: str) -> Any:
    return LoRARequest(path, 1 + int.from_bytes(hashlib.sha256(path.encode()).digest()[:3]), path) if path else None


def _logprobs(output: Any) -> list[float]:
    return [step[token].logprob for step, token in zip(output.logprobs, output.token_ids, strict=True)]


def _digest(output: torch.Tensor) -> str:
    return hashlib.sha256(output.contiguous().view(torch.uint8).numpy().tobytes()).hexdigest()


def main() -> None:
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # what vLLM prints
    engine = Engine(**json.loads(sys.stdin.readline()))
    print("{}", file=answers, flush=True)
    for line in sys.stdin:
        with contextlib.suppress(BrokenPipeError):
            print(json.dumps(engine.do(*json.loads(line))), file=answers, flush=True)


if __name__ == "__main__":
    main()
