"""Tiny pipelines with random weights: from a reference picture to a picture or a video, and of Qwen-Image's kind."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import diffusers
import torch
import transformers
from diffusers.pipelines.wan import pipeline_wan_i2v

from tests.hosts.diffusers.pipelines import SIZES, Tokenizer, stable_diffusion

VISION = {
    "hidden_size": 32,
    "intermediate_size": 37,
    "projection_dim": 24,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "image_size": 16,
    "patch_size": 4,
}


def reference(value: float = 0.5) -> torch.Tensor:
    """Return a picture of 16 × 16 pixels between 0 and 1."""
    return torch.linspace(0, value, 3 * 16 * 16).view(1, 3, 16, 16)


def image_to_image(dtype: torch.dtype = torch.float32) -> Any:
    pipeline = diffusers.StableDiffusionImg2ImgPipeline(
        **stable_diffusion(dtype).components, requires_safety_checker=False
    )
    pipeline.set_progress_bar_config(disable=True)
    return pipeline


def wan(dtype: torch.dtype = torch.float32) -> Any:
    torch.manual_seed(0)
    # Cleans prompts; not needed for these.
    vars(pipeline_wan_i2v).setdefault("ftfy", SimpleNamespace(fix_text=str))
    umt5 = transformers.UMT5EncoderModel(
        transformers.UMT5Config(vocab_size=64, d_model=32, d_kv=8, d_ff=37, num_layers=2, num_heads=4)
    )
    vae = diffusers.AutoencoderKLWan(
        base_dim=3, z_dim=16, dim_mult=[1, 1, 1, 1], num_res_blocks=1, temperal_downsample=[False, True, True]
    )
    transformer = diffusers.WanTransformer3DModel(
        num_attention_heads=2,
        attention_head_dim=12,
        in_channels=36,
        text_dim=32,
        ffn_dim=32,
        num_layers=2,
        rope_max_seq_len=32,
        image_dim=32,
    )
    pipeline = diffusers.WanImageToVideoPipeline(
        tokenizer=None,
        text_encoder=umt5.to(dtype).eval(),
        vae=vae.to(dtype).eval(),
        scheduler=diffusers.FlowMatchEulerDiscreteScheduler(shift=7.0),
        image_encoder=transformers.CLIPVisionModel(transformers.CLIPVisionConfig(**VISION)).to(dtype).eval(),
        transformer=transformer.to(dtype).eval(),
    )
    pipeline.tokenizer = Tokenizer()
    pipeline.image_processor = lambda images, **_: transformers.BatchFeature({"pixel_values": images.to(dtype)})
    pipeline.set_progress_bar_config(disable=True)
    return pipeline


TEXT = {
    **{name: SIZES[name] for name in ("vocab_size", "hidden_size", "intermediate_size", "num_hidden_layers")},
    "num_attention_heads": 2,
    "num_key_value_heads": 2,
}
PICTURED = {
    **TEXT,
    "rope_parameters": {"rope_type": "default", "rope_theta": 10000.0, "mrope_section": [2, 2, 4]},
}


def qwen2_5_vl() -> Any:
    vision = {"depth": 2, "hidden_size": 32, "intermediate_size": 32, "num_heads": 2, "out_hidden_size": 32}
    config = transformers.Qwen2_5_VLConfig(text_config=PICTURED, vision_config=vision, image_token_id=5)
    return transformers.Qwen2_5_VLForConditionalGeneration(config).eval()


def qwen2_vl() -> Any:
    vision = {"depth": 2, "embed_dim": 32, "hidden_size": 32, "num_heads": 2, "mlp_ratio": 1}
    config = transformers.Qwen2VLConfig(text_config=PICTURED, vision_config=vision, image_token_id=5)
    return transformers.Qwen2VLForConditionalGeneration(config).eval()


def qwen3() -> Any:
    return transformers.Qwen3ForCausalLM(transformers.Qwen3Config(**TEXT, head_dim=16)).eval()


def qwen_image(dtype: torch.dtype = torch.float32) -> Any:
    torch.manual_seed(0)
    vae = diffusers.AutoencoderKLQwenImage(
        base_dim=24,
        z_dim=4,
        dim_mult=[1, 2, 4],
        num_res_blocks=1,
        temperal_downsample=[False, True],
        latents_mean=[0.0] * 4,
        latents_std=[1.0] * 4,
    )
    transformer = diffusers.QwenImageTransformer2DModel(
        in_channels=16,
        out_channels=4,
        num_layers=2,
        attention_head_dim=16,
        num_attention_heads=3,
        joint_attention_dim=32,
        axes_dims_rope=(8, 4, 4),
    )
    pipeline = diffusers.QwenImagePipeline(
        scheduler=diffusers.FlowMatchEulerDiscreteScheduler(),
        vae=vae.to(dtype).eval(),
        text_encoder=qwen2_5_vl().to(dtype).eval(),
        tokenizer=None,
        transformer=transformer.to(dtype).eval(),
    )
    pipeline.tokenizer = Tokenizer()
    pipeline.tokenizer_max_length = 400
    pipeline.set_progress_bar_config(disable=True)
    return pipeline


def picture(pipeline: Any, prompt: str = "a cat", value: float = 0.5, seed: int = 0) -> torch.Tensor:
    """Return the picture or video of a prompt and a reference, from the same noise with each call."""
    asked: dict[str, Any] = {"generator": torch.Generator().manual_seed(seed), "output_type": "pt"}
    if isinstance(pipeline, diffusers.QwenImagePipeline):
        asked |= {"num_inference_steps": 2, "height": 16, "width": 16, "negative_prompt": " "}
        pixels: torch.Tensor = pipeline(prompt, **asked).images
    elif isinstance(pipeline, diffusers.WanImageToVideoPipeline):
        asked |= {"num_inference_steps": 2, "height": 16, "width": 16, "num_frames": 9, "max_sequence_length": 16}
        pixels = pipeline(reference(value), prompt, **asked).frames
    else:
        pixels = pipeline(prompt, reference(value), num_inference_steps=4, strength=0.5, **asked).images
    return pixels
