"""Measures the adapters of engines whose encoder can run alone: a new picture, and a picture that another engine has
encoded, beside the same engine without the adapter. On the CPU, in one process.

sglang        SGLang's own code around the tower of an engine, with a tower of 14 M parameters, 196 rows; in the
              environment of `make test-sglang`
lmdeploy      LMDeploy's own `ImageEncoder` with LLaVA, from the picture to the input of TurboMind: a tower of 43 M
              parameters, 64 rows; in the environment of `make test-lmdeploy`
tensorrt_llm  a step of TensorRT-LLM's mixin with a tower of 14 M parameters, 196 rows; with its own two files where
              `TENSORRT_LLM_SOURCE` names a checkout, else with what stands for them in its tests

A pair is one new picture, given to both sides, each side first in turns. The engine's CPU time until the answer depends
less on other work of the machine than the time does; what is saved behind the answer is in neither, but in the third
figure, with the CPU time of the store's process. Each pair's picture is then given to a third engine, which finds it.
One thread computes; weights are random.
"""

from __future__ import annotations

import asyncio
import logging
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NamedTuple

import torch

from mmcached.client import Client
from mmcached.client.saver import Saver
from scripts.bench import harness
from scripts.bench.adapters_servers import make_checkpoint, start_store
from scripts.bench.encode import cpu_ms
from scripts.bench.harness import Bound, Row, Section, Unavailable, row, wall_us
from scripts.bench.miss_tax import interval

SGLANG, LMDEPLOY, TENSORRT_LLM = "sglang", "lmdeploy", "tensorrt_llm"
OFF = "without the adapter"
NEW, KNOWN = "picture that is new", "picture that another engine has encoded"
CPU, WHOLE = f"{NEW}, CPU time", f"{NEW}, CPU time with the save"
SIZES = {
    SGLANG: "SGLang, tower of 14 M, 196 rows",
    LMDEPLOY: "LMDeploy, tower of 43 M, 64 rows",
    TENSORRT_LLM: "TensorRT-LLM's mixin, tower of 14 M, 196 rows",
}
BOUNDS = [
    *(Bound("reach", f"{NEW}, median of pairs", size, OFF, 1.03) for size in SIZES.values()),
    *(Bound("reach", f"{CPU}, median of pairs", size, OFF, 1.03) for size in SIZES.values()),
    *(Bound("try", f"{WHOLE}, median of pairs", size, OFF, 1.03) for size in SIZES.values()),
    *(Bound("reach", KNOWN, size, OFF, 0.2) for size in SIZES.values()),
]
NUM_PAIRS, QUICK_PAIRS = 60, 15
SAVED_S = 30.0
DEPTH, WIDTH, NUM_HEADS, NUM_ROWS = 2, 768, 12, 196


class Figures(NamedTuple):
    """Milliseconds of one picture: until the answer; CPU time of the engine until then; CPU time of all processes, with
    the save behind the answer.
    """

    taken: float
    answer: float
    whole: float


@dataclass(frozen=True, slots=True)
class Side:
    """One engine.

    Attributes:
        encode: Encodes the picture with a number.
        saver: Of the adapter; None without it. The adapter makes it with the first picture.
    """

    encode: Callable[[int], object]
    saver: Callable[[], Saver | None]

    def measure(self, run_dir: Path, picture: int) -> Figures:
        """Measure a picture, and wait until it is saved."""
        before_ms, of_process_ns = cpu_ms(run_dir), time.process_time_ns()
        taken_ms = wall_us(lambda: self.encode(picture)) / 1000
        answer_ms = (time.process_time_ns() - of_process_ns) / 1e6
        saver = self.saver()
        if saver is not None and not saver.drain(SAVED_S):
            raise SystemExit("the store does not get what an engine encodes")
        return Figures(taken_ms, answer_ms, cpu_ms(run_dir) - before_ms)


def compare_sides(run_dir: Path, params: str, sides: Sequence[Side], num_pairs: int) -> Iterator[Row]:
    """Measure pairs of pictures.

    Args:
        sides: One with the adapter, one without, and another one with it that is given what the first has encoded.
    """
    torch.set_num_threads(1)  # several wait for each other on a machine with other work
    for side in sides:
        side.measure(run_dir, 0)
    pairs, found = [], []
    for picture in range(1, num_pairs + 1):
        order = (0, 1) if picture % 2 else (1, 0)
        taken = {index: sides[index].measure(run_dir, picture) for index in order}
        pairs.append((taken[0], taken[1]))
        found.append(sides[2].measure(run_dir, picture).taken)
    for index, name in enumerate((NEW, CPU, WHOLE)):
        ratios = [ours[index] / off[index] for ours, off in pairs]
        low, high = interval(ratios)
        kinds = {"median of pairs": statistics.median(ratios), "95 % interval, low": low, "95 % interval, high": high}
        for kind, ratio in kinds.items():
            yield row(f"{name}, {kind}", params, ratio, "×", peer=OFF, peer_value=1.0)
    off_ms = statistics.median(off.taken for _, off in pairs)
    yield row(KNOWN, params, statistics.median(found), "ms", peer=OFF, peer_value=off_ms)


def _start_store(stack: ExitStack) -> Path:
    run_dir = start_store(stack)
    with Client(run_dir, connect_timeout_s=SAVED_S, fail_open=False):
        return run_dir


def _make_tower() -> torch.nn.TransformerEncoder:
    torch.manual_seed(0)
    layer = torch.nn.TransformerEncoderLayer(WIDTH, NUM_HEADS, 4 * WIDTH, batch_first=True)
    return torch.nn.TransformerEncoder(layer, DEPTH, enable_nested_tensor=False).eval()


def _make_input(picture: int) -> torch.Tensor:
    return torch.randn(1, NUM_ROWS, WIDTH, generator=torch.Generator().manual_seed(picture))


# ---- SGLang


def compare_sglang(num_pairs: int) -> Iterator[Row]:
    os.environ["HF_HUB_OFFLINE"] = "1"  # read when huggingface_hub is imported
    try:
        from sglang.srt.managers import mm_schedule
        from sglang.srt.runtime_context import SpawnRanks, publish
        from sglang.srt.server_args import ServerArgs

        from tests.hosts.sglang.test_engine_cache import CACHE_BYTES, Engine
    except ImportError as error:
        raise Unavailable(f"SGLang is not installed here: {error}") from error
    tower = _make_tower()

    class SizedEngine(Engine):
        def __init__(self, installs: bool) -> None:
            if installs:
                super().__init__()
            else:
                mm_schedule.init_mm_embedding_cache(CACHE_BYTES)
                self.cache = mm_schedule.embedding_cache

        @torch.inference_mode()
        def tower(self, items: list[Any]) -> torch.Tensor:
            rows: torch.Tensor = torch.cat([tower(_make_input(int(item.feature[0])))[0] for item in items])
            return rows

    def side(installs: bool) -> Side:
        engine = SizedEngine(installs)
        if installs:
            stack.callback(engine.cache.close)
        return Side(engine.embed, lambda: engine.cache.saver if installs else None)

    with ExitStack() as stack:
        run_dir = _start_store(stack)
        os.environ["MMCACHED_RUN_DIR"] = str(run_dir)
        checkpoint = make_checkpoint(stack, "--text-width", str(WIDTH), kind="qwen3_vl")
        arguments = ServerArgs(model_path=str(checkpoint), device="cpu", dtype="float32")
        publish(arguments, role="scheduler", ranks=SpawnRanks(world_rank=0, dp_rank=0, gpu_id=0))
        sides = [side(installs) for installs in (True, False, True)]
        yield from compare_sides(run_dir, SIZES[SGLANG], sides, num_pairs)


# ---- LMDeploy


def compare_lmdeploy(num_pairs: int) -> Iterator[Row]:
    try:
        from tests.hosts.lmdeploy.encoder_child import Encoder
    except ImportError as error:
        raise Unavailable(f"LMDeploy is not installed here: {error}") from error
    logging.getLogger("lmdeploy").setLevel(logging.WARNING)  # it says each forward on stdout

    def side(installs: bool) -> Side:
        encoder = Encoder(checkpoint, run_dir, installs=installs)
        stack.callback(encoder.close)
        return Side(
            lambda picture: asyncio.run(encoder.request(picture)),
            lambda: None if encoder.shared is None else encoder.shared.saver,
        )

    with ExitStack() as stack:
        run_dir = _start_store(stack)
        checkpoint = make_checkpoint(stack, "--depth", "6", "--width", "768", kind="llava")
        sides = [side(installs) for installs in (True, False, True)]
        yield from compare_sides(run_dir, SIZES[LMDEPLOY], sides, num_pairs)


# ---- TensorRT-LLM


def compare_tensorrt_llm(num_pairs: int) -> Iterator[Row]:
    from tests.integrations.tensorrt_llm.conftest import make_site

    with ExitStack() as stack:
        run_dir = _start_store(stack)
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="mmc-")))
        sys.path.insert(0, str(make_site(folder / "site")))
        checkpoint = folder / "checkpoint"
        checkpoint.mkdir()
        (checkpoint / "config.json").write_text('{"model_type": "sized"}')
        sides = [_side_of_mixin(stack, checkpoint, run_dir, installs) for installs in (True, False, True)]
        yield from compare_sides(run_dir, SIZES[TENSORRT_LLM], sides, num_pairs)


def _side_of_mixin(stack: ExitStack, checkpoint: Path, run_dir: Path, installs: bool) -> Side:
    from mmcached.integrations.tensorrt_llm import install

    install(str(run_dir))
    from tests.integrations.tensorrt_llm.models import TinyModel, hash_of

    class SizedModel(TinyModel):
        """A tower of usual width, whose input are rows of that width."""

        def __init__(self) -> None:
            super().__init__(checkpoint, cache_bytes=128 << 20)
            self.model_config.pretrained_config.text_config.hidden_size = WIDTH
            self.tower = _make_tower()

        @torch.inference_mode()
        def encode_multimodal_inputs(self, multimodal_params: Any) -> torch.Tensor:
            return torch.cat(
                [self.tower(each.multimodal_data["image"]["pixel_values"])[0] for each in multimodal_params]
            )

    def request(picture: int) -> Any:
        return SimpleNamespace(
            multimodal_data={
                "image": {"pixel_values": _make_input(picture)},
                "multimodal_embedding_lengths": [NUM_ROWS],
                "mm_processor_kwargs_hash": "kwargs",
            },
            multimodal_input=SimpleNamespace(multimodal_hashes=[hash_of(picture)]),
            multimodal_runtime=None,
            encoder_event=None,
        )

    model: Any = SizedModel().eval()
    if not installs:
        object.__setattr__(model, "_mmcached_encoder_cache", None)
    _ = model.cache  # makes it
    shared = vars(model)["_mmcached_encoder_cache"]
    if shared is not None:
        stack.callback(shared.close)
    return Side(
        lambda picture: model._get_or_encode_multimodal_embeddings([request(picture)]),
        lambda: None if shared is None else shared.saver,
    )


def open_sections(_undo: ExitStack) -> Mapping[str, Section]:
    return {SGLANG: compare_sglang, LMDEPLOY: compare_lmdeploy, TENSORRT_LLM: compare_tensorrt_llm}


if __name__ == "__main__":
    harness.main(
        "adapters of engines, new pictures and known ones",
        [SGLANG, LMDEPLOY, TENSORRT_LLM],
        open_sections,
        rounds=(NUM_PAIRS, QUICK_PAIRS),
        bounds=BOUNDS,
    )
