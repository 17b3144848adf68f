"""Measures `generate` with checkpoints of 0.1 B and 0.5 B parameters, random weights, on the CPU.

Sections, such as "prefix 0.1 B":

prefix     the first token of a prompt whose first 2,000 tokens are known, and of a new one
pictures   the first token of a prompt with a picture that is known, and with a new one
batch      16 requests at once in the modes packed and aligned, beside `generate_batch` of Transformers
vllm       the same in the mode packed, beside vLLM
stream     the first token of a stream beside 16 others, and alone

The models have the shapes of SmolLM-135M and Qwen2.5-0.5B, the tower that of CLIP-L at 336 px (576 tokens a picture).
Services and peers compute in float32, with as many threads as `OMP_NUM_THREADS` says, else as there are processors.
The environment of `make test-vllm` has both peers.
"""

from __future__ import annotations

import asyncio
import contextlib
import tempfile
import time
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from functools import partial
from io import BytesIO
from pathlib import Path
from random import Random
from typing import Any

import numpy as np

from mmcached.cli.serve.child_service import ChildService
from mmcached.client import AsyncClient, Client
from mmcached.wire.config import ServiceConfig
from scripts.bench import harness
from scripts.bench.harness import Bound, Row, Sampler, Section, compare, require_extras, row
from scripts.bench.language_peers import AnswerBatch, generate_batch, vllm_engine

NUM_ROUNDS, QUICK_ROUNDS = 5, 2
START_S, ANSWER_S = 600.0, 600.0
SIZES: Mapping[str, Mapping[str, Any]] = {
    "0.1 B": {
        "vocab_size": 49_152,
        "hidden_size": 576,
        "intermediate_size": 1536,
        "num_hidden_layers": 30,
        "num_attention_heads": 9,
        "num_key_value_heads": 3,
    },
    "0.5 B": {
        "vocab_size": 151_936,
        "hidden_size": 896,
        "intermediate_size": 4864,
        "num_hidden_layers": 24,
        "num_attention_heads": 14,
        "num_key_value_heads": 2,
    },
}
TOWER = {
    "hidden_size": 1024,
    "intermediate_size": 4096,
    "num_hidden_layers": 24,
    "num_attention_heads": 16,
    "image_size": 336,
    "patch_size": 14,
    "projection_dim": 768,
}
IMAGE_TOKEN = 500
KNOWN, MORE = 2000, 50
NUM_REQUESTS, PROMPT, ANSWER = 16, 128, 32
BATCH = f"{NUM_REQUESTS} requests of {PROMPT} + {ANSWER} tokens"
PREFIX_NEW, PICTURE_NEW, PEER, VLLM, ALONE = "prefix new", "picture new", "generate_batch", "vLLM", "alone"
OTHER_TEXT = "other text before it"
BOUNDS = [
    Bound(kind="reach", name="first token, 2,000 tokens known", params=f"{size}, aligned", peer=PREFIX_NEW, ratio=0.15)
    for size in SIZES
]
BOUNDS += [
    Bound(kind="reach", name="first token, picture known", params=f"{size}, aligned", peer=PICTURE_NEW, ratio=0.3)
    for size in SIZES
]
BOUNDS += [
    Bound(kind="reach", name=BATCH, params=f"{size}, packed", peer=PEER, ratio=1.0, is_floor=True) for size in SIZES
]


# ---- checkpoints and services


def write_checkpoint(folder: Path, size: str, *, has_tower: bool = False) -> None:
    """Write a model with random weights; it never ends an answer by itself."""
    import torch
    import transformers

    settings = {"max_position_embeddings": 4096, "tie_word_embeddings": True, "bos_token_id": None}
    text = transformers.LlamaConfig(**SIZES[size], **settings, eos_token_id=None)
    torch.manual_seed(0)
    if not has_tower:
        transformers.LlamaForCausalLM(text).save_pretrained(folder)
        return
    vision = transformers.CLIPVisionConfig(**TOWER)
    config = transformers.LlavaConfig(text_config=text, vision_config=vision, image_token_index=IMAGE_TOKEN)
    transformers.LlavaForConditionalGeneration(config).save_pretrained(folder)
    side = {"height": TOWER["image_size"], "width": TOWER["image_size"]}
    transformers.CLIPImageProcessor(size=side, crop_size=side).save_pretrained(folder)


@contextlib.contextmanager
def service(checkpoint: Path, **model: Any) -> Iterator[Path]:
    """Run a service with one engine and one worker; yield its run directory."""
    fields: dict[str, Any] = {
        "model": {"kind": "hf", "path": str(checkpoint), "dtype": "fp32", **model},
        "world_size": 1,
        "device": "cpu",
        "num_kv_blocks": 1024,
        "max_model_len": 4096,
        "max_num_seqs": 2 * NUM_REQUESTS,
        "http_port": 0,
        "start_timeout_s": START_S,
        "request_timeout_s": ANSWER_S,
        "step_timeout_s": ANSWER_S,
    }
    if (checkpoint / "preprocessor_config.json").exists():
        fields["encoder"] = {"kind": "hf", "path": str(checkpoint), "dtype": "fp32"}
    with tempfile.TemporaryDirectory(prefix="mmc-", dir="/tmp") as scratch:
        run_dir = Path(scratch) / "run"
        with ChildService(run_dir, ServiceConfig.from_fields(fields), Path(scratch) / "config.json"):
            yield run_dir


@contextlib.contextmanager
def checkpoint_of(size: str, *, has_tower: bool = False) -> Iterator[Path]:
    with tempfile.TemporaryDirectory(prefix="mmc-", dir="/tmp") as scratch:
        folder = Path(scratch)
        write_checkpoint(folder, size, has_tower=has_tower)
        yield folder


class Prompts:
    """Random token ids, other ones each time."""

    def __init__(self, seed: int) -> None:
        self._random = Random(seed)

    def new(self, num_tokens: int) -> list[int]:
        return [self._random.randrange(IMAGE_TOKEN + 1, 40_000) for _ in range(num_tokens)]

    def picture(self) -> bytes:
        from PIL import Image

        pixels = np.random.default_rng(self._random.randrange(1 << 30)).integers(0, 255, (12, 12, 3), np.uint8)
        file = BytesIO()
        Image.fromarray(pixels).resize((640, 480), Image.Resampling.BICUBIC).save(file, "JPEG")
        return file.getvalue()


def first_token_ms(client: Client, prompt: Sequence[int], files: Sequence[bytes] = ()) -> float:
    started = time.perf_counter()
    client.generate(prompt, files, max_tokens=1)
    return (time.perf_counter() - started) * 1e3


# ---- sections


def prefix(size: str, num_rounds: int) -> Iterator[Row]:
    with checkpoint_of(size) as folder:
        for mode in ("aligned", "packed"):
            with service(folder, mode=mode) as run_dir, Client(run_dir, timeout_s=ANSWER_S) as client:
                figures = compare(_with_prefixes(client, Prompts(1)), num_rounds)
            yield _row("first token, 2,000 tokens known", f"{size}, {mode}", figures, PREFIX_NEW)


def _with_prefixes(client: Client, prompts: Prompts) -> Mapping[str, Sampler]:
    known = prompts.new(KNOWN)
    return {
        "ours": lambda: first_token_ms(client, [*known, *prompts.new(MORE)]),
        PREFIX_NEW: lambda: first_token_ms(client, prompts.new(KNOWN + MORE)),
    }


def pictures(size: str, num_rounds: int) -> Iterator[Row]:
    with (
        checkpoint_of(size, has_tower=True) as folder,
        service(folder) as run_dir,
        Client(run_dir, timeout_s=ANSWER_S) as client,
    ):
        figures = compare(_with_pictures(client, Prompts(2)), num_rounds)
    yield _row("first token, picture known", f"{size}, aligned", figures, PICTURE_NEW)
    figures["ours"] = figures[OTHER_TEXT]
    yield _row(f"first token, picture known, {OTHER_TEXT}", f"{size}, aligned", figures, PICTURE_NEW)


def _with_pictures(client: Client, prompts: Prompts) -> Mapping[str, Sampler]:
    begin, known = [*prompts.new(20), IMAGE_TOKEN], prompts.picture()

    def new() -> list[int]:
        return [*prompts.new(20), IMAGE_TOKEN, *prompts.new(20)]

    return {
        OTHER_TEXT: lambda: first_token_ms(client, new(), [known]),
        "ours": lambda: first_token_ms(client, [*begin, *prompts.new(20)], [known]),
        PICTURE_NEW: lambda: first_token_ms(client, new(), [prompts.picture()]),
    }


def batch(size: str, num_rounds: int) -> Iterator[Row]:
    with (
        checkpoint_of(size) as folder,
        service(folder, mode="packed") as packed,
        service(folder, mode="aligned") as aligned,
        generate_batch(folder, ANSWER) as peer,
    ):
        figures = compare(_with_batches(packed, aligned, peer, Prompts(3)), num_rounds)
    yield _row(BATCH, f"{size}, packed", figures, PEER, "tokens/s")
    packed_figures = {"ours": figures["aligned"], "packed": figures["ours"]}
    yield _row(BATCH, f"{size}, aligned", packed_figures, "packed", "tokens/s")


def _with_batches(packed: Path, aligned: Path, peer: AnswerBatch, prompts: Prompts) -> Mapping[str, Sampler]:
    return {
        "ours": lambda: _tokens_per_s(partial(_answer_all, packed), prompts),
        "aligned": lambda: _tokens_per_s(partial(_answer_all, aligned), prompts),
        PEER: lambda: _tokens_per_s(peer, prompts),
    }


def vllm(size: str, num_rounds: int) -> Iterator[Row]:
    require_extras(vllm="vllm")
    with checkpoint_of(size) as folder, service(folder, mode="packed") as packed, vllm_engine(folder, ANSWER) as peer:
        prompts = Prompts(5)
        samplers: dict[str, Sampler] = {
            "ours": lambda: _tokens_per_s(partial(_answer_all, packed), prompts),
            VLLM: lambda: _tokens_per_s(peer, prompts),
        }
        figures = compare(samplers, num_rounds)
    yield _row(BATCH, f"{size}, packed", figures, VLLM, "tokens/s")


def stream(size: str, num_rounds: int) -> Iterator[Row]:
    with checkpoint_of(size) as folder:
        for mode in ("packed", "aligned"):
            with service(folder, mode=mode) as run_dir:
                figures = compare(_with_others(run_dir, Prompts(4)), num_rounds)
            yield _row(f"first token of a stream beside {NUM_REQUESTS} others", f"{size}, {mode}", figures, ALONE)


def _with_others(run_dir: Path, prompts: Prompts) -> Mapping[str, Sampler]:
    return {
        "ours": lambda: asyncio.run(_first_piece_ms(run_dir, prompts, NUM_REQUESTS)),
        ALONE: lambda: asyncio.run(_first_piece_ms(run_dir, prompts, 0)),
    }


def _row(name: str, params: str, figures: Mapping[str, float], peer: str, unit: str = "ms") -> Row:
    return row(name, params, figures["ours"], unit, peer=peer, peer_value=figures[peer])


def _tokens_per_s(answer_all: AnswerBatch, prompts: Prompts) -> float:
    asked = [prompts.new(PROMPT) for _ in range(NUM_REQUESTS)]
    started = time.perf_counter()
    num_tokens = answer_all(asked)
    return num_tokens / (time.perf_counter() - started)


def _answer_all(run_dir: Path, asked: Sequence[Sequence[int]]) -> int:
    return asyncio.run(_answer_at_once(run_dir, asked))


async def _answer_at_once(run_dir: Path, asked: Sequence[Sequence[int]]) -> int:
    async with AsyncClient(run_dir, timeout_s=ANSWER_S) as client:
        answers = await asyncio.gather(*(client.generate(prompt, max_tokens=ANSWER) for prompt in asked))
    return sum(len(answer.tokens) for answer in answers)


async def _first_piece_ms(run_dir: Path, prompts: Prompts, num_others: int) -> float:
    """Return the time to the first token of a stream, after each of the others has one."""
    async with AsyncClient(run_dir, timeout_s=ANSWER_S) as client:
        begun = [asyncio.Event() for _ in range(num_others)]

        async def other(event: asyncio.Event) -> None:
            async for _ in client.generate_stream(prompts.new(PROMPT), max_tokens=4 * ANSWER):
                event.set()

        others = [asyncio.create_task(other(event)) for event in begun]
        waits: list[Awaitable[Any]] = [event.wait() for event in begun]
        await asyncio.gather(*waits)
        started = time.perf_counter()
        taken = 0.0
        async for _ in client.generate_stream(prompts.new(PROMPT), max_tokens=2):
            taken = taken or time.perf_counter() - started
        for task in others:
            task.cancel()
        await asyncio.gather(*others, return_exceptions=True)
    return taken * 1e3


SECTIONS: Mapping[str, Callable[[str, int], Iterator[Row]]] = {
    "prefix": prefix,
    "pictures": pictures,
    "batch": batch,
    "vllm": vllm,
    "stream": stream,
}


def open_sections(undo: contextlib.ExitStack) -> Mapping[str, Section]:
    require_extras(transformers="hf", torch="hf")
    return {f"{name} {size}": partial(section, size) for name, section in SECTIONS.items() for size in SIZES}


if __name__ == "__main__":
    harness.main(
        "generate with checkpoints",
        [f"{name} {size}" for name in SECTIONS for size in SIZES],
        open_sections,
        rounds=(NUM_ROUNDS, QUICK_ROUNDS),
        bounds=BOUNDS,
    )
