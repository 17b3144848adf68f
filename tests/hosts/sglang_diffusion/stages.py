"""SGLang's stages with its own encoders, tiny and with random weights, as one rank of a server on a CPU."""

from __future__ import annotations

import os
import tempfile
import warnings
from collections.abc import Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import patch

import torch

with warnings.catch_warnings():  # they say at import what a machine without a GPU does not have
    warnings.simplefilter("ignore")
    import torch._inductor.compile_fx
    from sglang.multimodal_gen.configs.models.encoders import CLIPTextConfig, CLIPVisionConfig, T5Config
    from sglang.multimodal_gen.configs.models.vaes.flux import FluxVAEConfig
    from sglang.multimodal_gen.configs.pipeline_configs.flux import FluxPipelineConfig
    from sglang.multimodal_gen.runtime.distributed import parallel_state
    from sglang.multimodal_gen.runtime.models.encoders.clip import CLIPTextModel, CLIPVisionModel
    from sglang.multimodal_gen.runtime.models.encoders.t5 import T5EncoderModel
    from sglang.multimodal_gen.runtime.models.vaes.autoencoder import AutoencoderKL
    from sglang.multimodal_gen.runtime.pipelines_core.stages.text_encoding import TextEncodingStage
    from sglang.multimodal_gen.runtime.platforms.plugins import apply_plugin_hooks
    from sglang.multimodal_gen.runtime.server_args import server_args

from tests.hosts.flux_checkpoint import CLIP, T5, clip_tokenizer, t5_tokenizer

STAGE_ARGUMENTS = "sglang.multimodal_gen.runtime.pipelines_core.stages.base.get_global_server_args"


def start_rank() -> None:
    """Apply plug-ins, as SGLang's workers do first, and make the groups of one rank."""
    apply_plugin_hooks()
    if parallel_state.model_parallel_is_initialized():
        return
    os.environ |= {"MASTER_ADDR": "localhost", "RANK": "0", "WORLD_SIZE": "1", "LOCAL_RANK": "0"}
    meeting = Path(tempfile.mkdtemp()) / "ranks"
    parallel_state.init_distributed_environment(
        world_size=1, rank=0, local_rank=0, backend="gloo", distributed_init_method=f"file://{meeting}"
    )
    parallel_state.initialize_model_parallel(
        **{"data_parallel_size": 1, "classifier_free_guidance_degree": 1, "sequence_parallel_degree": 1},
        **{"ulysses_degree": 1, "ring_degree": 1, "tensor_parallel_degree": 1, "pipeline_parallel_degree": 1},
    )


class TextStage:
    """SGLang's `TextEncodingStage` of Flux: CLIP, T5, and what a server puts around a stage."""

    def __init__(
        self, folder: Path, *, seed: int = 0, clip: Mapping[str, Any] = CLIP, t5: Mapping[str, Any] = T5
    ) -> None:
        torch.manual_seed(seed)
        self.encoders = [
            random_weights(CLIPTextModel(_sized(CLIPTextConfig(), clip))),
            random_weights(T5EncoderModel(_sized(T5Config(), {**t5, "num_hidden_layers": t5["num_layers"]}))),
        ]
        self._arguments = SimpleNamespace(pipeline_config=FluxPipelineConfig())
        server_args.set_global_server_args(self._arguments)
        with patch(STAGE_ARGUMENTS, return_value=self._arguments):
            self._stage = TextEncodingStage(self.encoders, [clip_tokenizer(folder), t5_tokenizer()])
        self.num_computed = 0
        self._stage._begin_text_encoder_use = self._note
        self._stage.finish_unused_declared_component = lambda **named: None
        self._stage._text_encode_dp_group = lambda *values: None

    @torch.no_grad()
    def encode(self, prompt: str, cache: Any, *, is_on: bool = True) -> list[torch.Tensor]:
        """Return the states of both encoders, masks and pooled parts of a prompt, in the scope of SGLang's cache.

        Args:
            is_on: Whether the cache is asked.
        """
        with cache.scope(is_on):
            parts = self._stage.encode_text(prompt, self._arguments, encoder_index=[0, 1], return_attention_mask=True)
        return [each for part in parts for each in part if isinstance(each, torch.Tensor)]

    def _note(self, index: int) -> None:
        """Count what SGLang computes: it calls this before it uses an encoder."""
        self.num_computed += 1


def image_encoder() -> Any:
    sizes = {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4}
    torch.manual_seed(0)
    return random_weights(CLIPVisionModel(_sized(CLIPVisionConfig(), {**sizes, "image_size": 8, "patch_size": 4})))


def vae() -> Any:
    sizes = {
        **{"block_out_channels": (4, 8), "layers_per_block": 1, "act_fn": "silu", "latent_channels": 2},
        **{"norm_num_groups": 2, "sample_size": 8, "use_quant_conv": False, "use_post_quant_conv": False},
        **{"down_block_types": ("DownEncoderBlock2D",) * 2, "up_block_types": ("UpDecoderBlock2D",) * 2},
        "mid_block_add_attention": True,
    }
    torch.manual_seed(0)
    return random_weights(AutoencoderKL(_sized(FluxVAEConfig(), sizes)))


def random_weights(model: Any) -> Any:
    for parameter in model.parameters():
        torch.nn.init.normal_(parameter, std=0.1)
    return model.eval()


def _sized(config: Any, sizes: Mapping[str, Any]) -> Any:
    for name, value in sizes.items():
        setattr(config.arch_config, name, value)
    return config
