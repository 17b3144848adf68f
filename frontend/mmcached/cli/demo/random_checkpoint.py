"""Makes a small vision-language checkpoint with random weights, without any download: weights, settings, processor.

    python -m mmcached.cli.demo.random_checkpoint FOLDER

The tokenizer is byte-level without merges: 256 bytes and the special tokens. All weights follow from a fixed seed. The
language model takes milliseconds per token; the size of the vision tower is an argument. Run as a program, it keeps
Transformers out of the command's process.
"""

from __future__ import annotations

import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import transformers
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

TEXT_WIDTH = 128
MAX_LENGTH = 8192
CHAT = """\
{% for message in messages %}<|im_start|>{{ message.role }}
{% if message.content is string %}{{ message.content }}{% else %}{% for part in message.content %}\
{% if part.type == 'text' %}{{ part.text }}{% else %}IMAGE{% endif %}{% endfor %}{% endif %}<|im_end|>
{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant
{% endif %}"""
QWEN_IMAGE = "<|vision_start|><|image_pad|><|vision_end|>"
QWEN_TOKENS = [
    *("<|endoftext|>", "<|im_start|>", "<|im_end|>", "<|vision_start|>", "<|vision_end|>", "<|vision_pad|>"),
    *("<|image_pad|>", "<|video_pad|>"),
]


@dataclass(frozen=True, slots=True)
class Tower:
    """The size of a vision tower.

    Attributes:
        depth: Number of layers, at least 4.
        width: Hidden size, a multiple of 64.
    """

    depth: int = 4
    width: int = 128

    @property
    def sizes(self) -> dict[str, Any]:
        return {"depth": self.depth, "hidden_size": self.width, "num_heads": self.width // 64}

    @property
    def mlp_width(self) -> int:
        return 4 * self.width if self.width > TEXT_WIDTH else 2 * self.width


DEMO_TOWER = Tower(depth=8, width=768)
"""86 million parameters, like ViT-B."""
DEMO_PIXELS = 448 * 448
"""Pixels of an image after the processor. vLLM encodes an image of the largest size when it starts."""


def qwen2_5_vl(folder: Path, tower: Tower, max_pixels: int) -> None:
    """Write a checkpoint of Qwen2.5-VL's class.

    Args:
        folder: Empty or missing.
        max_pixels: Pixels of an image after the processor.
    """
    vision = tower.sizes | {
        "intermediate_size": tower.mlp_width,
        "patch_size": 14,
        "out_hidden_size": TEXT_WIDTH,
        "window_size": 112,
        "fullatt_block_indexes": [1, tower.depth - 1],
    }
    rope = {"rope_type": "default", "rope_theta": 1e6, "mrope_section": [16, 8, 8]}
    qwen("Qwen2_5_VL", folder, vision, {"rope_parameters": rope}, max_pixels)


def qwen(family: str, folder: Path, vision: dict[str, Any], text: dict[str, Any], max_pixels: int) -> None:
    """Write a checkpoint of `Qwen2_5_VL` or `Qwen3VL`.

    Args:
        vision: Configuration of the tower.
        text: Configuration of the language model, in addition to `language_model`.
    """
    tokenizer = byte_tokenizer(QWEN_TOKENS, QWEN_IMAGE, eos_token="<|im_end|>", pad_token="<|endoftext|>")
    ids = {token: tokenizer.convert_tokens_to_ids(token) for token in QWEN_TOKENS}
    config = getattr(transformers, f"{family}Config")(
        text_config=language_model(ids["<|endoftext|>"], ids["<|im_end|>"], ids["<|endoftext|>"]) | text,
        vision_config=vision,
        image_token_id=ids["<|image_pad|>"],
        video_token_id=ids["<|video_pad|>"],
        vision_start_token_id=ids["<|vision_start|>"],
        vision_end_token_id=ids["<|vision_end|>"],
        tie_word_embeddings=False,
    )
    patch = {"patch_size": vision["patch_size"], "merge_size": 2, "temporal_patch_size": 2}
    size = {"shortest_edge": (2 * vision["patch_size"]) ** 2, "longest_edge": max_pixels}
    videos = "Qwen3VLVideoProcessor" if family == "Qwen3VL" else "Qwen2VLVideoProcessor"
    processor = getattr(transformers, f"{family}Processor")(
        image_processor=transformers.Qwen2VLImageProcessor(size=size, **patch),
        tokenizer=tokenizer,
        video_processor=getattr(transformers, videos)(size=size, **patch),
        chat_template=tokenizer.chat_template,
    )
    save(getattr(transformers, f"{family}ForConditionalGeneration"), config, processor, folder)


def byte_tokenizer(special: list[str], image: str, **names: str) -> Any:
    """Return a tokenizer of bytes; `image` is an image's text in a chat, `names` are special tokens by their role."""
    vocabulary = {letter: number for number, letter in enumerate(sorted(pre_tokenizers.ByteLevel.alphabet()))}
    raw = Tokenizer(models.BPE(vocab=vocabulary, merges=[]))
    raw.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    raw.decoder = decoders.ByteLevel()
    raw.add_special_tokens([AddedToken(token, special=True, normalized=False) for token in special])
    return transformers.PreTrainedTokenizerFast(
        tokenizer_object=raw,
        additional_special_tokens=[token for token in special if token not in names.values()],
        chat_template=CHAT.replace("IMAGE", image),
        model_max_length=MAX_LENGTH,
        **names,
    )


def language_model(bos: int, eos: int, pad: int) -> dict[str, Any]:
    return {
        "vocab_size": 512,
        "hidden_size": TEXT_WIDTH,
        "intermediate_size": 2 * TEXT_WIDTH,
        "num_hidden_layers": 2,
        "num_attention_heads": 2,
        "num_key_value_heads": 2,
        "max_position_embeddings": MAX_LENGTH,
        "rms_norm_eps": 1e-6,
        "tie_word_embeddings": False,
        "bos_token_id": bos,
        "eos_token_id": eos,
        "pad_token_id": pad,
    }


def save(model_class: Any, config: Any, processor: Any, folder: Path) -> None:
    torch.manual_seed(0)
    model = model_class(config).to(torch.float32).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.dim() > 1:  # with the initial weights, all images give nearly equal outputs after a few layers
                parameter.mul_(3.0)
    model.save_pretrained(folder)
    processor.save_pretrained(folder)


if __name__ == "__main__":
    qwen2_5_vl(Path(sys.argv[1]), DEMO_TOWER, DEMO_PIXELS)
