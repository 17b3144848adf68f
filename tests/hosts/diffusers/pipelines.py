"""Tiny pipelines with random weights, the same in every process: of the kinds of Stable Diffusion and Flux."""

from __future__ import annotations

from typing import Any, ClassVar

import diffusers
import torch
import transformers

SIZES = {
    "vocab_size": 64,
    "hidden_size": 32,
    "intermediate_size": 37,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "max_position_embeddings": 77,
    "bos_token_id": 0,
    "eos_token_id": 2,
    "projection_dim": 32,
}


class Tokenizer:
    """Numbers for characters; takes what pipelines hand to a tokenizer."""

    model_max_length = 16
    added_tokens_encoder: ClassVar[dict[str, int]] = {}

    def __call__(self, prompts: Any, max_length: int = 16, **_: Any) -> Any:
        prompts = [prompts] if isinstance(prompts, str) else prompts
        rows = [[3 + ord(each) % 60 for each in text][: max_length - 1] for text in prompts]
        ids = torch.tensor([row + [2] * (max_length - len(row)) for row in rows])
        return transformers.BatchEncoding({"input_ids": ids, "attention_mask": torch.ones_like(ids)})

    def tokenize(self, text: str) -> list[str]:
        return list(text)

    def batch_decode(self, ids: Any, **_: Any) -> list[str]:
        return ["" for _ in ids]


def clip(dtype: torch.dtype = torch.float32) -> Any:
    return transformers.CLIPTextModel(transformers.CLIPTextConfig(**SIZES)).to(dtype).eval()


def projected() -> Any:
    """Return the second text encoder of a pipeline like Stable Diffusion XL."""
    return transformers.CLIPTextModelWithProjection(transformers.CLIPTextConfig(**SIZES)).eval()


def stable_diffusion(dtype: torch.dtype = torch.float32) -> Any:
    torch.manual_seed(0)
    unet = diffusers.UNet2DConditionModel(
        block_out_channels=(4, 8),
        layers_per_block=1,
        sample_size=8,
        down_block_types=("DownBlock2D", "CrossAttnDownBlock2D"),
        up_block_types=("CrossAttnUpBlock2D", "UpBlock2D"),
        cross_attention_dim=32,
        norm_num_groups=2,
    )
    pipeline = diffusers.StableDiffusionPipeline(
        unet=unet.to(dtype).eval(),
        scheduler=diffusers.DDIMScheduler(steps_offset=1, clip_sample=False),
        vae=_vae(4, dtype),
        text_encoder=clip(dtype),
        tokenizer=None,
        safety_checker=None,
        feature_extractor=None,
        requires_safety_checker=False,
    )
    pipeline.tokenizer = Tokenizer()
    return _quiet(pipeline)


def flux(dtype: torch.dtype = torch.float32) -> Any:
    torch.manual_seed(0)
    transformer = diffusers.FluxTransformer2DModel(
        in_channels=4,
        num_layers=1,
        num_single_layers=1,
        attention_head_dim=16,
        num_attention_heads=2,
        joint_attention_dim=32,
        pooled_projection_dim=32,
        axes_dims_rope=(4, 4, 8),
    )
    t5 = transformers.T5EncoderModel(
        transformers.T5Config(vocab_size=64, d_model=32, d_kv=8, d_ff=37, num_layers=2, num_heads=4)
    )
    pipeline = diffusers.FluxPipeline(
        transformer=transformer.to(dtype).eval(),
        scheduler=diffusers.FlowMatchEulerDiscreteScheduler(),
        vae=_vae(1, dtype),
        text_encoder=clip(dtype),
        tokenizer=None,
        text_encoder_2=t5.to(dtype).eval(),
        tokenizer_2=None,
    )
    pipeline.tokenizer = pipeline.tokenizer_2 = Tokenizer()
    pipeline.tokenizer_max_length = 16
    return _quiet(pipeline)


PIPELINES = {"stable_diffusion": stable_diffusion, "flux": flux}


def picture(pipeline: Any, prompt: str = "a cat", **named: Any) -> torch.Tensor:
    """Return the picture of a prompt, from the same noise with each call."""
    if isinstance(pipeline, diffusers.FluxPipeline):
        named["max_sequence_length"] = 16
    generator = torch.Generator().manual_seed(0)
    asked = {"num_inference_steps": 2, "height": 16, "width": 16, "output_type": "pt", **named}
    images: torch.Tensor = pipeline(prompt, generator=generator, **asked).images
    return images


def _vae(num_channels: int, dtype: torch.dtype) -> Any:
    vae = diffusers.AutoencoderKL(
        block_out_channels=(4, 8),
        down_block_types=("DownEncoderBlock2D",) * 2,
        up_block_types=("UpDecoderBlock2D",) * 2,
        latent_channels=num_channels,
        norm_num_groups=2,
        shift_factor=0.0,
    )
    return vae.to(dtype).eval()


def _quiet(pipeline: Any) -> Any:
    pipeline.set_progress_bar_config(disable=True)
    return pipeline
