"""Makes small models of each family in memory, with random weights, and inputs with two images for each."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import transformers
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from tokenizers.pre_tokenizers import WhitespaceSplit
from transformers.models.clip.image_processing_pil_clip import CLIPImageProcessorPil
from transformers.models.qwen3_omni_moe.configuration_qwen3_omni_moe import Qwen3OmniMoeThinkerConfig

WIDTH, DEPTH = 64, 2
PINPOINTS = [[56, 112], [112, 56], [112, 112]]
IMAGE = 500
TEXT = {
    "vocab_size": 512,
    "hidden_size": 64,
    "intermediate_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "num_key_value_heads": 2,
    "head_dim": 32,
    "max_position_embeddings": 4096,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
}
SMALL = {"hidden_size": WIDTH, "intermediate_size": WIDTH, "num_attention_heads": 2, "num_hidden_layers": DEPTH}

HEARING = {
    "d_model": WIDTH,
    "encoder_layers": DEPTH,
    "encoder_attention_heads": 2,
    "encoder_ffn_dim": WIDTH,
    "output_dim": 64,
    "num_mel_bins": 80,
}

Inputs = dict[str, torch.Tensor]


def make(family: str, dtype: torch.dtype = torch.float32, *, seed: int = 0) -> tuple[Any, Inputs]:
    """Return a model in evaluation mode, and the inputs of one prompt with two images."""
    torch.manual_seed(seed)
    model, inputs = MAKERS[family]()
    with torch.no_grad():
        for parameter in model.parameters():
            if not parameter.count_nonzero():  # Gemma 3's projection is made of zeros: then all images look alike
                parameter.normal_(std=0.02)
    inputs = {name: value.to(dtype) if value.is_floating_point() else value for name, value in inputs.items()}
    return model.to(dtype).eval(), inputs


def pictures(*shape: int, seed: int = 1) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def prompt(*num_rows: int) -> Inputs:
    """Return token ids with that many placeholders for each image."""
    ids = [token for rows in num_rows for token in (502, *[IMAGE] * rows, 503, 5, 6, 7)]
    return {"input_ids": torch.tensor([ids]), "attention_mask": torch.ones(1, len(ids), dtype=torch.long)}


def _qwen(name: str, section: list[int], interleaved: bool, **vision: Any) -> tuple[Any, Inputs]:
    rope = {"rope_type": "default", "rope_theta": 1e6, "mrope_section": section}
    text = TEXT | {"rope_parameters": rope | ({"mrope_interleaved": True} if interleaved else {})}
    vision |= {"depth": DEPTH, "num_heads": 2, "spatial_merge_size": 2, "temporal_patch_size": 2}
    config = getattr(transformers, f"{name}Config")(
        text_config=text,
        vision_config=vision,
        image_token_id=IMAGE,
        video_token_id=501,
        vision_start_token_id=502,
        vision_end_token_id=503,
        tie_word_embeddings=False,
    )
    grid = torch.tensor([[1, 8, 12], [1, 6, 4]])
    patches = grid.prod(-1)
    inputs = prompt(*(patches // 4).tolist())
    inputs["pixel_values"] = pictures(int(patches.sum()), 3 * 2 * vision["patch_size"] ** 2)
    inputs["image_grid_thw"] = grid
    inputs["mm_token_type_ids"] = (inputs["input_ids"] == IMAGE).int()
    return getattr(transformers, f"{name}ForConditionalGeneration")(config), inputs


def qwen2_vl() -> tuple[Any, Inputs]:
    return _qwen("Qwen2VL", [8, 4, 4], False, embed_dim=WIDTH, hidden_size=64, mlp_ratio=2, patch_size=14)


def qwen2_5_vl() -> tuple[Any, Inputs]:
    sizes = {"hidden_size": WIDTH, "intermediate_size": WIDTH, "out_hidden_size": 64, "patch_size": 14}
    return _qwen("Qwen2_5_VL", [8, 4, 4], False, window_size=112, fullatt_block_indexes=[1], **sizes)


def qwen3_vl() -> tuple[Any, Inputs]:
    sizes = {"hidden_size": WIDTH, "intermediate_size": WIDTH, "out_hidden_size": 64, "patch_size": 16}
    return _qwen("Qwen3VL", [8, 4, 4], True, num_position_embeddings=256, deepstack_visual_indexes=[0, 1], **sizes)


def llava() -> tuple[Any, Inputs]:
    vision = SMALL | {"model_type": "clip_vision_model", "image_size": 56, "patch_size": 14, "projection_dim": WIDTH}
    config = transformers.LlavaConfig(
        vision_config=vision, text_config=TEXT | {"model_type": "llama"}, image_token_index=IMAGE, image_token_id=IMAGE
    )
    model = transformers.LlavaForConditionalGeneration(config)
    return model, prompt(16, 16) | {"pixel_values": pictures(2, 3, 56, 56)}


def gemma3(side: int = 56, num_tokens: int = 4, window: int = 512) -> tuple[Any, Inputs]:
    config = transformers.Gemma3Config(
        vision_config=SMALL | {"image_size": side, "patch_size": 14},
        text_config=TEXT | {"sliding_window": window, "query_pre_attn_scalar": 32},
        mm_tokens_per_image=num_tokens,
        image_token_index=IMAGE,
        boi_token_index=502,
        eoi_token_index=503,
    )
    return transformers.Gemma3ForConditionalGeneration(config), _typed(prompt(num_tokens, num_tokens))


def gemma3_wide() -> tuple[Any, Inputs]:
    """Return a model whose pictures have more tokens than its window."""
    return gemma3(112, 16, 12)


def paligemma() -> tuple[Any, Inputs]:
    vision = SMALL | {"model_type": "siglip_vision_model", "image_size": 56, "patch_size": 14, "vision_use_head": False}
    config = transformers.PaliGemmaConfig(
        vision_config=vision,
        text_config=TEXT | {"model_type": "gemma"},
        image_token_index=IMAGE,
        projection_dim=64,
        hidden_size=64,
    )
    return transformers.PaliGemmaForConditionalGeneration(config), _typed(prompt(16, 16))


def _typed(inputs: Inputs) -> Inputs:
    return inputs | {"token_type_ids": (inputs["input_ids"] == IMAGE).long(), "pixel_values": pictures(2, 3, 56, 56)}


def internvl() -> tuple[Any, Inputs]:
    config = transformers.InternVLConfig(
        vision_config=SMALL | {"image_size": [56, 56], "patch_size": [14, 14]},
        text_config=TEXT | {"model_type": "qwen2"},
        image_token_id=IMAGE,
        downsample_ratio=0.5,
        image_seq_length=4,
    )
    model = transformers.InternVLForConditionalGeneration(config)
    return model, prompt(4, 4) | {"pixel_values": pictures(2, 3, 56, 56)}


def minicpmv(name: str = "MiniCPMV4_6") -> tuple[Any, Inputs]:
    text = TEXT | {"model_type": "qwen3_5_text", "layer_types": 2 * ["full_attention"]}
    config = getattr(transformers, f"{name}Config")(
        vision_config=SMALL | {"image_size": 112, "patch_size": 14},
        text_config=text,
        insert_layer_id=0,
        image_token_id=IMAGE,
        video_token_id=501,
    )
    sizes = torch.tensor([[8, 12], [4, 8]], dtype=torch.int32)
    num_patches = sizes.prod(-1)
    inputs = prompt(*(num_patches // 16).tolist())
    inputs |= {"pixel_values": pictures(1, 3, 14, 14 * int(num_patches.sum())), "target_sizes": sizes}
    return getattr(transformers, f"{name}ForConditionalGeneration")(config), inputs


def minicpmv4_7() -> tuple[Any, Inputs]:
    model, inputs = minicpmv("MiniCPMV4_7")
    return model, inputs | {"mm_token_type_ids": (inputs["input_ids"] == IMAGE).int()}


def llava_next() -> tuple[Any, Inputs]:
    """Return a model and two images: the whole and four tiles; the whole and one tile below the other."""
    vision = SMALL | {"model_type": "clip_vision_model", "image_size": 56, "patch_size": 14, "projection_dim": WIDTH}
    config = transformers.LlavaNextConfig(
        vision_config=vision,
        text_config=TEXT | {"model_type": "llama"},
        image_token_index=IMAGE,
        image_grid_pinpoints=PINPOINTS,
    )
    return transformers.LlavaNextForConditionalGeneration(config), _tiled()


def llava_onevision() -> tuple[Any, Inputs]:
    vision = SMALL | {"model_type": "siglip_vision_model", "image_size": 56, "patch_size": 14, "vision_use_head": False}
    config = transformers.LlavaOnevisionConfig(
        vision_config=vision,
        text_config=TEXT | {"model_type": "qwen2"},
        image_token_index=IMAGE,
        video_token_index=501,
        image_grid_pinpoints=PINPOINTS,
        vision_feature_layer=-1,
    )
    return transformers.LlavaOnevisionForConditionalGeneration(config), _tiled()


def _tiled() -> Inputs:
    num_rows = {(100, 90): 88, (110, 50): 56}  # with the rows that end lines, without those of the padding
    pixels = pictures(2, 5, 3, 56, 56)
    pixels[1, 3:] = 0  # filled up to the number of tiles of the first image
    sizes = torch.tensor(list(num_rows))
    return prompt(*num_rows.values()) | {"pixel_values": pixels, "image_sizes": sizes}


def smolvlm(name: str = "SmolVLM") -> tuple[Any, Inputs]:
    config = getattr(transformers, f"{name}Config")(
        vision_config=SMALL | {"image_size": 56, "patch_size": 14},
        text_config=TEXT | {"model_type": "llama"},
        image_token_id=IMAGE,
        scale_factor=2,
    )
    return getattr(transformers, f"{name}ForConditionalGeneration")(config), {}


def idefics3() -> tuple[Any, Inputs]:
    return smolvlm("Idefics3")


def clip() -> tuple[Any, Inputs]:
    vision = SMALL | {"image_size": 56, "patch_size": 14}
    config = transformers.CLIPConfig(text_config=SMALL | {"vocab_size": 64}, vision_config=vision, projection_dim=WIDTH)
    return transformers.CLIPModel(config), {"pixel_values": pictures(2, 3, 56, 56)}


def siglip() -> tuple[Any, Inputs]:
    vision = SMALL | {"image_size": 56, "patch_size": 14}
    config = transformers.SiglipConfig(text_config=SMALL | {"vocab_size": 64}, vision_config=vision)
    return transformers.SiglipModel(config), {"pixel_values": pictures(2, 3, 56, 56)}


def clip_tower() -> tuple[Any, Inputs]:
    config = transformers.CLIPVisionConfig(**SMALL, image_size=56, patch_size=14)
    return transformers.CLIPVisionModel(config), {"pixel_values": pictures(2, 3, 56, 56)}


def siglip_tower() -> tuple[Any, Inputs]:
    config = transformers.SiglipVisionConfig(**SMALL, image_size=56, patch_size=14)
    return transformers.SiglipVisionModel(config), {"pixel_values": pictures(2, 3, 56, 56)}


def dinov2() -> tuple[Any, Inputs]:
    config = transformers.Dinov2Config(**SMALL, image_size=56, patch_size=14)
    return transformers.Dinov2Model(config), {"pixel_values": pictures(2, 3, 56, 56)}


def siglip2() -> tuple[Any, Inputs]:
    vision = SMALL | {"num_patches": 16, "patch_size": 14}
    config = transformers.Siglip2Config(text_config=SMALL | {"vocab_size": 64}, vision_config=vision)
    return transformers.Siglip2Model(config), {}


def siglip2_tower() -> tuple[Any, Inputs]:
    return transformers.Siglip2VisionModel(transformers.Siglip2VisionConfig(**SMALL, num_patches=16, patch_size=14)), {}


def whisper() -> tuple[Any, Inputs]:
    sizes = {"d_model": WIDTH, "encoder_layers": DEPTH, "encoder_attention_heads": 2, "encoder_ffn_dim": WIDTH}
    text = {"decoder_layers": 1, "decoder_attention_heads": 2, "decoder_ffn_dim": WIDTH, "vocab_size": 64}
    ids = {"pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2, "decoder_start_token_id": 1}
    config = transformers.WhisperConfig(**sizes, **text, **ids, max_source_positions=50, max_target_positions=16)
    return transformers.WhisperForConditionalGeneration(config), {}


def videomae() -> tuple[Any, Inputs]:
    config = transformers.VideoMAEConfig(**SMALL, image_size=32, patch_size=16, num_frames=4, tubelet_size=2)
    return transformers.VideoMAEModel(config), {}


def qwen2_5_omni() -> tuple[Any, Inputs]:
    sizes = {"hidden_size": WIDTH, "intermediate_size": WIDTH, "out_hidden_size": 64, "patch_size": 14}
    vision = sizes | {"depth": DEPTH, "num_heads": 2, "window_size": 112, "fullatt_block_indexes": [1]}
    rope = {"rope_type": "default", "rope_theta": 1e6, "mrope_section": [8, 4, 4]}
    config = transformers.Qwen2_5OmniThinkerConfig(
        audio_config=HEARING | {"n_window": 50}, vision_config=vision, text_config=TEXT | {"rope_parameters": rope}
    )
    return transformers.Qwen2_5OmniThinkerForConditionalGeneration(config), {}


def qwen3_omni() -> tuple[Any, Inputs]:
    vision = {"hidden_size": WIDTH, "intermediate_size": WIDTH, "out_hidden_size": 64, "depth": DEPTH, "num_heads": 2}
    rope = {"rope_type": "default", "rope_theta": 1e6, "mrope_section": [8, 4, 4], "mrope_interleaved": True}
    experts = {"num_experts": 2, "num_experts_per_tok": 1, "moe_intermediate_size": 32, "rope_parameters": rope}
    hearing = HEARING | {"downsample_hidden_size": 16, "n_window": 50, "n_window_infer": 200}
    config = Qwen3OmniMoeThinkerConfig(
        audio_config=hearing,
        vision_config=vision | {"num_position_embeddings": 256, "deepstack_visual_indexes": [0, 1]},
        text_config=TEXT | experts,
    )
    return transformers.Qwen3OmniMoeThinkerForConditionalGeneration(config), {}


GENERATIVE: list[Callable[[], tuple[Any, Inputs]]] = [
    llava,
    qwen2_vl,
    qwen2_5_vl,
    qwen3_vl,
    gemma3,
    paligemma,
    internvl,
    minicpmv,
    minicpmv4_7,
]
TILED: list[Callable[[], tuple[Any, Inputs]]] = [llava_next, llava_onevision]
"""Whose two images have eight tiles, which are encoded apart and packed."""
TOWERS: list[Callable[[], tuple[Any, Inputs]]] = [clip, siglip, clip_tower, siglip_tower]
OTHERS: list[Callable[[], tuple[Any, Inputs]]] = [
    dinov2,
    siglip2,
    siglip2_tower,
    whisper,
    qwen2_5_omni,
    qwen3_omni,
    videomae,
    gemma3_wide,
    smolvlm,
    idefics3,
]
"""Which a service encodes with, and `cached_image_features` does not take."""
MAKERS = {maker.__name__: maker for maker in (*GENERATIVE, *TILED, *TOWERS, *OTHERS)}


def save_llava(folder: Path) -> None:
    """Write a checkpoint of LLaVA with a processor, as `from_pretrained` reads it."""
    words = {"<pad>": 0, "<s>": 1, "</s>": 2, "<image>": IMAGE}
    words |= {f"word{number}": number for number in range(TEXT["vocab_size"]) if number not in words.values()}
    raw = Tokenizer(WordLevel(words, unk_token="<pad>"))
    raw.pre_tokenizer = WhitespaceSplit()
    tokenizer = transformers.PreTrainedTokenizerFast(
        tokenizer_object=raw, pad_token="<pad>", eos_token="</s>", extra_special_tokens={"image_token": "<image>"}
    )
    size = {"height": 56, "width": 56}
    processor = transformers.LlavaProcessor(
        CLIPImageProcessorPil(size=size, crop_size=size),
        tokenizer,
        patch_size=14,
        vision_feature_select_strategy="default",
        num_additional_image_tokens=1,
        chat_template="{% for part in messages[0].content %}{{ part.text or '<image>' }} {% endfor %}",
    )
    model, _ = make("llava")
    model.save_pretrained(folder)
    processor.save_pretrained(folder)
