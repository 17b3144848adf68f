"""Measures what the store takes and saves in a text stage of SGLang's diffusion servers: on the CPU, in one process.

seen     a prompt that another process has encoded; SGLang's own cache is empty
new      a prompt that nobody has encoded

The stage is SGLang's `TextEncodingStage` of Flux with its own encoders, of the width of T5-base (110 M parameters, 512
tokens) and CLIP-L, and random weights. The peer is the stage without a cache. Times are the processor time of all
threads: a busy neighbour multiplies the wall time of encoders.

Runs in the environment of `make test-sglang-diffusion`.
"""

from __future__ import annotations

import contextlib
import os
import tempfile
import time
from collections.abc import Iterator, Mapping
from functools import partial
from itertools import count
from pathlib import Path
from typing import Any

from scripts.bench import harness
from scripts.bench.harness import Bound, Row, Section, Unavailable, row
from scripts.bench.sidecar_processes import frontend

NUM_ROUNDS, QUICK_ROUNDS = 9, 3
OFF = "without a cache"
SIZES = "T5 of 110 M, CLIP-L, 512 tokens"
BOUNDS = [Bound("reach", f"prompt {state}", SIZES, OFF, ratio) for state, ratio in (("seen", 0.05), ("new", 1.03))]


def compare_prompts(run_dir: Path, num_rounds: int) -> Iterator[Row]:
    os.environ["MMCACHED_CONDITIONING"] = str(run_dir)
    stage, cache = _stage(run_dir), _cache()
    words = count()

    def time_of(prompt: str, *, is_on: bool = True) -> float:
        started = time.process_time_ns()
        stage.encode(prompt, cache, is_on=is_on)
        return (time.process_time_ns() - started) / 1e6

    def new() -> str:
        return "".join("abcdefghij"[int(digit)] for digit in str(next(words))) + " cats"

    seen = new()
    stage.encode(seen, cache)
    sides = {
        "seen": lambda: time_of(seen),
        "new": lambda: time_of(new()),
        OFF: lambda: time_of(new(), is_on=False),
    }
    figures = harness.compare(sides, num_rounds)
    for state in ("seen", "new"):
        yield row(f"prompt {state}", SIZES, figures[state], "ms", peer=OFF, peer_value=figures[OFF])


def _stage(folder: Path) -> Any:
    try:
        from tests.hosts.sglang_diffusion.stages import TextStage, start_rank
    except ImportError as error:
        raise Unavailable("SGLang's diffusion servers are not installed") from error
    start_rank()
    clip = {"hidden_size": 768, "intermediate_size": 3072, "num_hidden_layers": 12, "num_attention_heads": 12}
    clip |= {"vocab_size": 54, "max_position_embeddings": 77, "bos_token_id": 52, "eos_token_id": 53}
    t5 = {"vocab_size": 32128, "d_model": 768, "d_kv": 64, "d_ff": 2048, "num_layers": 12, "num_heads": 12}
    return TextStage(folder / "stage", clip=clip, t5=t5)


def _cache() -> Any:
    from sglang.multimodal_gen.runtime.cache.conditioning import ConditioningCache

    return ConditioningCache(0)


def open_sections(undo: contextlib.ExitStack) -> Mapping[str, Section]:
    run_dir = Path(undo.enter_context(tempfile.TemporaryDirectory(prefix="mmc-")))
    undo.enter_context(frontend(run_dir))
    return {"prompts": partial(compare_prompts, run_dir)}


if __name__ == "__main__":
    harness.main(
        "text stage of SGLang's diffusion servers",
        ["prompts"],
        open_sections,
        rounds=(NUM_ROUNDS, QUICK_ROUNDS),
        bounds=BOUNDS,
    )
