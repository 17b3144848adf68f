"""Measures the adapter for diffusers beside a pipeline without it: on the CPU, in one process.

prompts      `encode_prompt` of Flux, for a prompt that the store has, and for one that it has not
references   `encode` of a VAE, for a picture that the store has, and for one that it has not

The encoders have the width of T5-base (110 M parameters, 512 tokens), CLIP-L and Stable Diffusion's VAE (256 px).
Weights are random. The peer is a copy of the pipeline without the adapter. Times are the processor time of all threads:
a busy neighbour multiplies the wall time of encoders.
"""

from __future__ import annotations

import contextlib
import copy
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from itertools import count
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from mmcached.client import Client
from scripts.bench import harness
from scripts.bench.harness import Bound, Row, Section, Unavailable, row
from scripts.bench.sidecar_processes import frontend

NUM_ROUNDS, QUICK_ROUNDS = 9, 3
OFF = "without the adapter"
TEXT, VAE = "T5 of 110 M, CLIP-L", "VAE of 34 M, 256 px"
NUM_TOKENS, SIDE = 512, 256
BOUNDS = [
    Bound("reach", f"{name} {state}", params, OFF, ratio)
    for name, params in (("prompt", TEXT), ("reference", VAE))
    for state, ratio in (("seen", 0.05), ("new", 1.03))
]


def make_pipeline() -> Any:
    """Return a pipeline of Flux's kind with text encoders alone.

    Raises:
        Unavailable: diffusers is not installed.
    """
    try:
        import diffusers
        import transformers
    except ImportError as error:
        raise Unavailable("diffusers is not installed") from error
    from tests.hosts.diffusers.pipelines import Tokenizer

    t5 = transformers.T5Config(
        d_model=768, d_ff=2048, num_layers=12, num_heads=12, feed_forward_proj="gated-gelu", vocab_size=32128
    )
    clip = transformers.CLIPTextConfig(
        hidden_size=768, intermediate_size=3072, num_hidden_layers=12, num_attention_heads=12
    )
    pipeline = diffusers.FluxPipeline(
        scheduler=None,
        vae=None,
        transformer=None,
        text_encoder=transformers.CLIPTextModel(clip).eval(),
        text_encoder_2=transformers.T5EncoderModel(t5).eval(),
        tokenizer=None,
        tokenizer_2=None,
    )
    pipeline.tokenizer = pipeline.tokenizer_2 = Tokenizer()
    pipeline.tokenizer_max_length = 77
    return pipeline


def make_vae() -> Any:
    """Return a holder of a VAE of the size of Stable Diffusion's.

    Raises:
        Unavailable: diffusers is not installed.
    """
    try:
        import diffusers
    except ImportError as error:
        raise Unavailable("diffusers is not installed") from error
    vae = diffusers.AutoencoderKL(
        block_out_channels=(128, 256, 512, 512),
        down_block_types=("DownEncoderBlock2D",) * 4,
        up_block_types=("UpDecoderBlock2D",) * 4,
        layers_per_block=2,
        latent_channels=4,
    )
    return SimpleNamespace(vae=vae.eval())


def compare_prompts(client: Client, num_rounds: int) -> Iterator[Row]:
    words = count()
    yield from compare(
        client,
        num_rounds,
        make_pipeline(),
        lambda pipeline, prompt: pipeline.encode_prompt(prompt, max_sequence_length=NUM_TOKENS),
        lambda: f"a picture of {next(words)} cats",
        name="prompt",
        params=TEXT,
    )


def compare_references(client: Client, num_rounds: int) -> Iterator[Row]:
    import torch

    yield from compare(
        client,
        num_rounds,
        make_vae(),
        lambda holder, pixels: holder.vae.encode(pixels),
        lambda: torch.rand(1, 3, SIDE, SIDE),
        name="reference",
        params=VAE,
    )


def compare(
    client: Client,
    num_rounds: int,
    pipeline: Any,
    encode: Callable[[Any, Any], object],
    make: Callable[[], Any],
    *,
    name: str,
    params: str,
) -> Iterator[Row]:
    """Compare the times of `encode` for an input that was encoded before, and for one that `make` returns."""
    import torch

    from mmcached.integrations.diffusers import cached_conditioning

    plain = copy.deepcopy(pipeline)
    seen = make()
    with torch.no_grad(), cached_conditioning(pipeline, client):
        encode(pipeline, seen)

        def time_of(which: Any, what: Any) -> float:
            started = time.process_time_ns()
            encode(which, what)
            return (time.process_time_ns() - started) / 1e6

        sides = {
            "seen": lambda: time_of(pipeline, seen),
            "new": lambda: time_of(pipeline, make()),
            OFF: lambda: time_of(plain, make()),
        }
        figures = harness.compare(sides, num_rounds)
    for state in ("seen", "new"):
        ours, off = figures[state], figures[OFF]
        yield row(f"{name} {state}", params, ours, "ms", peer=OFF, peer_value=off)


def open_sections(undo: contextlib.ExitStack) -> Mapping[str, Section]:
    run_dir = Path(undo.enter_context(tempfile.TemporaryDirectory(prefix="mmc-")))
    undo.enter_context(frontend(run_dir))
    client = undo.enter_context(Client(run_dir, fail_open=False))
    return {"prompts": partial(compare_prompts, client), "references": partial(compare_references, client)}


if __name__ == "__main__":
    harness.main(
        "text encoders and VAE encodes of diffusers",
        ["prompts", "references"],
        open_sections,
        rounds=(NUM_ROUNDS, QUICK_ROUNDS),
        bounds=BOUNDS,
    )
