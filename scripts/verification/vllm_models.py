"""Folders with the configurations of the models that vLLM's `tests/v1/core` names: no weights, no network.

vLLM takes a folder of the working directory for a model of that name. Tokenizers know nothing but special tokens.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

SPECIAL_TOKENS = ("<unk>", "<s>", "</s>")
MEAN_AND_STD = {"image_mean": [0.5, 0.5, 0.5], "image_std": [0.5, 0.5, 0.5]}


def _opt(hidden_size: int, num_layers: int, embed_dim: int) -> dict[str, Any]:
    return {
        "architectures": ["OPTForCausalLM"],
        "model_type": "opt",
        "vocab_size": 50272,
        "hidden_size": hidden_size,
        "num_hidden_layers": num_layers,
        "ffn_dim": 4 * hidden_size,
        "num_attention_heads": hidden_size // 64,
        "max_position_embeddings": 2048,
        "word_embed_proj_dim": embed_dim,
        "torch_dtype": "float16",
    }


LLAVA = "llava-hf/llava-1.5-7b-hf"
QWEN_VL = "Qwen/Qwen2.5-VL-3B-Instruct"
QWEN_VL_SIZES = {
    "min_pixels": 3136,
    "max_pixels": 12845056,
    "patch_size": 14,
    "temporal_patch_size": 2,
    "merge_size": 2,
}

CONFIGS: dict[str, dict[str, Any]] = {
    "facebook/opt-125m": _opt(768, 12, 768),
    "facebook/opt-350m": _opt(1024, 24, 512),
    "Qwen/Qwen1.5-7B": {
        "architectures": ["Qwen2ForCausalLM"],
        "model_type": "qwen2",
        "hidden_size": 4096,
        "intermediate_size": 11008,
        "max_position_embeddings": 32768,
        "num_attention_heads": 32,
        "num_hidden_layers": 32,
        "num_key_value_heads": 32,
        "vocab_size": 151936,
        "torch_dtype": "bfloat16",
    },
    "Qwen/Qwen3-0.6B": {
        "architectures": ["Qwen3ForCausalLM"],
        "model_type": "qwen3",
        "hidden_size": 1024,
        "intermediate_size": 3072,
        "max_position_embeddings": 40960,
        "num_attention_heads": 16,
        "num_hidden_layers": 28,
        "num_key_value_heads": 8,
        "head_dim": 128,
        "vocab_size": 151936,
        "torch_dtype": "bfloat16",
    },
    "Qwen/Qwen3-Next-80B-A3B-Instruct": {
        "architectures": ["Qwen3NextForCausalLM"],
        "model_type": "qwen3_next",
        "torch_dtype": "bfloat16",
    },
    LLAVA: {
        "architectures": ["LlavaForConditionalGeneration"],
        "model_type": "llava",
        "image_token_index": len(SPECIAL_TOKENS),
        "torch_dtype": "float16",
        "text_config": {"model_type": "llama", "max_position_embeddings": 4096, "vocab_size": 32064},
        "vision_config": {
            "model_type": "clip_vision_model",
            "hidden_size": 1024,
            "image_size": 336,
            "intermediate_size": 4096,
            "num_attention_heads": 16,
            "num_hidden_layers": 24,
            "patch_size": 14,
            "projection_dim": 768,
        },
    },
    QWEN_VL: {
        "architectures": ["Qwen2_5_VLForConditionalGeneration"],
        "model_type": "qwen2_5_vl",
        "hidden_size": 2048,
        "intermediate_size": 11008,
        "max_position_embeddings": 128000,
        "num_attention_heads": 16,
        "num_hidden_layers": 36,
        "num_key_value_heads": 2,
        "vocab_size": 151936,
        "torch_dtype": "bfloat16",
        "rope_scaling": {"type": "mrope", "mrope_section": [16, 24, 24]},
        "vision_config": {"depth": 32, "hidden_size": 1280, "out_hidden_size": 2048, "num_heads": 16, "patch_size": 14},
        **{
            name: number
            for number, name in enumerate(
                ("image_token_id", "video_token_id", "vision_start_token_id", "vision_end_token_id"),
                len(SPECIAL_TOKENS),
            )
        },
    },
}

PICTURE_TOKENS = {
    LLAVA: ("<image>",),
    QWEN_VL: ("<|image_pad|>", "<|video_pad|>", "<|vision_start|>", "<|vision_end|>"),
}

PROCESSORS: dict[str, dict[str, dict[str, Any]]] = {
    LLAVA: {
        "preprocessor_config.json": {
            "image_processor_type": "CLIPImageProcessor",
            "crop_size": {"height": 336, "width": 336},
            "size": {"shortest_edge": 336},
            **MEAN_AND_STD,
        },
        "processor_config.json": {
            "processor_class": "LlavaProcessor",
            "image_token": "<image>",
            "patch_size": 14,
            "vision_feature_select_strategy": "default",
            "num_additional_image_tokens": 1,
        },
    },
    QWEN_VL: {
        "preprocessor_config.json": {
            "image_processor_type": "Qwen2VLImageProcessor",
            "processor_class": "Qwen2_5_VLProcessor",
            **QWEN_VL_SIZES,
            **MEAN_AND_STD,
        },
        "video_preprocessor_config.json": {"video_processor_type": "Qwen2VLVideoProcessor", **QWEN_VL_SIZES},
    },
}


def write_models(folder: Path) -> None:
    """Write a folder for each model."""
    for name, config in CONFIGS.items():
        files: dict[str, dict[str, Any]] = {"config.json": config, **PROCESSORS.get(name, {})}
        if name in PICTURE_TOKENS:
            files |= _tokenizer(SPECIAL_TOKENS + PICTURE_TOKENS[name])
        (folder / name).mkdir(parents=True)
        for file_name, content in files.items():
            (folder / name / file_name).write_text(json.dumps(content))


def _tokenizer(words: tuple[str, ...]) -> dict[str, dict[str, Any]]:
    unknown, _, end, *_ = words
    flags = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False, "special": True}
    tokenizer = {
        "version": "1.0",
        "added_tokens": [{"id": number, "content": word, **flags} for number, word in enumerate(words)],
        "pre_tokenizer": {"type": "Whitespace"},
        "model": {
            "type": "WordLevel",
            "vocab": {word: number for number, word in enumerate(words)},
            "unk_token": unknown,
        },
    }
    names = {"unk_token": unknown, "pad_token": unknown, "eos_token": end}
    return {
        "tokenizer.json": tokenizer,
        "tokenizer_config.json": {"tokenizer_class": "PreTrainedTokenizerFast", **names},
    }
