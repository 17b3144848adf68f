"""Makes tiny vision-language checkpoints with random weights, without any hub: weights, configuration, processor.

    python -m tests.hosts.checkpoints KIND FOLDER [--depth N] [--width N] [--max-pixels N]

The tokenizer is byte-level without merges: 256 bytes and the special tokens. Everything follows from a fixed seed. Each
step of a start and of a test takes milliseconds, but for the vision tower if `--depth` and `--width` make it large.
Runs in an environment that has transformers; run as a program it keeps the warnings of that away from a test.
"""

from __future__ import annotations

import argparse
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import transformers
from safetensors.torch import load_file, save_file
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

TEXT_WIDTH = 128
MAX_LENGTH = 8192
DEFAULT_MAX_PIXELS = 448 * 448
"""Of an image after the processor. vLLM encodes one of the largest size when it starts."""
LLAVA_PATCHES = 8
"""Along an edge of LLaVA's square."""
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
        depth: layers, at least 4.
        width: hidden size, a multiple of 64.
    """

    depth: int = 4
    width: int = 128

    @property
    def sizes(self) -> dict[str, Any]:
        return {"depth": self.depth, "hidden_size": self.width, "num_heads": self.width // 64}

    @property
    def mlp_width(self) -> int:
        return 4 * self.width if self.width > TEXT_WIDTH else 2 * self.width


DEFAULT_TOWER = Tower()


def make(kind: str, folder: Path, tower: Tower, max_pixels: int) -> None:
    """Write the checkpoint of a kind into an empty or missing folder."""
    MAKERS[kind](folder, tower, max_pixels)


def qwen2_5_vl(folder: Path, tower: Tower, max_pixels: int) -> None:
    vision = tower.sizes | {
        "intermediate_size": tower.mlp_width,
        "patch_size": 14,
        "out_hidden_size": TEXT_WIDTH,
        "window_size": 112,
        "fullatt_block_indexes": [1, tower.depth - 1],
    }
    rope = {"rope_type": "default", "rope_theta": 1e6, "mrope_section": [16, 8, 8]}
    qwen("Qwen2_5_VL", folder, vision, {"rope_parameters": rope}, max_pixels)


def qwen3_vl(folder: Path, tower: Tower, max_pixels: int) -> None:
    """Its tower gives several tensors for an item: those of `deepstack_visual_indexes` too."""
    vision = tower.sizes | {
        "intermediate_size": tower.mlp_width,
        "patch_size": 16,
        "out_hidden_size": TEXT_WIDTH,
        "num_position_embeddings": 2304,
        "deepstack_visual_indexes": [1, 2],
    }
    rope = {"rope_type": "default", "rope_theta": 1e6, "mrope_section": [12, 10, 10], "mrope_interleaved": True}
    qwen("Qwen3VL", folder, vision, {"head_dim": 64, "rope_parameters": rope}, max_pixels)


def qwen(family: str, folder: Path, vision: dict[str, Any], text: dict[str, Any], max_pixels: int) -> None:
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


def llava(folder: Path, tower: Tower, max_pixels: int) -> None:
    """Every image is made a square of one size, as CLIP wants it: an item has always as many rows."""
    patch, width = 14, TEXT_WIDTH
    side = patch * min(int(max_pixels**0.5) // patch, LLAVA_PATCHES)
    special = ["<|endoftext|>", "<|im_start|>", "<|im_end|>", "<image>"]
    tokenizer = byte_tokenizer(special, "<image>", eos_token="<|im_end|>", pad_token="<|endoftext|>")
    ids = {token: tokenizer.convert_tokens_to_ids(token) for token in special}
    text = language_model(ids["<|endoftext|>"], ids["<|im_end|>"], ids["<|endoftext|>"])
    vision = {
        "hidden_size": tower.width,
        "intermediate_size": tower.mlp_width,
        "num_hidden_layers": tower.depth,
        "num_attention_heads": tower.width // 64,
        "image_size": side,
        "patch_size": patch,
        "projection_dim": width,
    }
    config = transformers.LlavaConfig(
        text_config=transformers.LlamaConfig(**text),
        vision_config=transformers.CLIPVisionConfig(**vision),
        image_token_index=ids["<image>"],
        tie_word_embeddings=False,
    )
    processor = transformers.LlavaProcessor(
        image_processor=transformers.CLIPImageProcessor(
            size={"shortest_edge": side}, crop_size={"height": side, "width": side}
        ),
        tokenizer=tokenizer,
        patch_size=patch,
        vision_feature_select_strategy="default",
        num_additional_image_tokens=1,
        chat_template=tokenizer.chat_template,
    )
    save(transformers.LlavaForConditionalGeneration, config, processor, folder)
    file = folder / "model.safetensors"
    weights = load_file(file)
    for name in [name for name in weights if "vision_tower." in name and "vision_model." not in name]:
        # What vLLM reads are the names that Transformers has written before 5.
        weights[name.replace("vision_tower.", "vision_tower.vision_model.")] = weights.pop(name)
    save_file(weights, file, {"format": "pt"})


def byte_tokenizer(special: list[str], image: str, **names: str) -> Any:
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
            if parameter.dim() > 1:  # as they are initialised, all images look alike after a few layers
                parameter.mul_(3.0)
    model.save_pretrained(folder)
    processor.save_pretrained(folder)


MAKERS = {"qwen2_5_vl": qwen2_5_vl, "qwen3_vl": qwen3_vl, "llava": llava}


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("kind", choices=MAKERS)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--depth", type=int, default=DEFAULT_TOWER.depth)
    parser.add_argument("--width", type=int, default=DEFAULT_TOWER.width)
    parser.add_argument("--max-pixels", type=int, default=DEFAULT_MAX_PIXELS)
    given = parser.parse_args()
    make(given.kind, given.folder, Tower(given.depth, given.width), given.max_pixels)


if __name__ == "__main__":
    main()
