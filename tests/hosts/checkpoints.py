"""Makes tiny vision-language checkpoints with random weights, without any hub: weights, configuration, processor.

    python -m tests.hosts.checkpoints KIND FOLDER [--depth N] [--width N] [--max-pixels N] [--text-width N]

The tokenizer is byte-level without merges: 256 bytes and the special tokens. Everything follows from a fixed seed. Each
step of a start and of a test takes milliseconds, but for the vision tower if `--depth` and `--width` make it large.
Runs in an environment that has transformers; run as a program it keeps the warnings of that away from a test.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import transformers
from safetensors.torch import load_file, save_file

from mmcached.cli.demo.random_checkpoint import (
    TEXT_WIDTH,
    Tower,
    byte_tokenizer,
    language_model,
    qwen,
    qwen2_5_vl,
    save,
)

DEFAULT_MAX_PIXELS = 448 * 448
"""Of an image after the processor. vLLM encodes one of the largest size when it starts."""
LLAVA_PATCHES = 8
"""Along an edge of LLaVA's square."""
DEFAULT_TOWER = Tower()


def make(kind: str, folder: Path, tower: Tower, max_pixels: int) -> None:
    """Write the checkpoint of a kind into an empty or missing folder."""
    MAKERS[kind](folder, tower, max_pixels)


def qwen3_vl(folder: Path, tower: Tower, max_pixels: int, text_width: int = TEXT_WIDTH) -> None:
    """Its tower gives several tensors for an item: those of `deepstack_visual_indexes` too.

    Args:
        text_width: Numbers of an embedding; if it is another than usual, there is one tensor for an item.
    """
    vision = tower.sizes | {
        "intermediate_size": tower.mlp_width,
        "patch_size": 16,
        "out_hidden_size": text_width,
        "num_position_embeddings": 2304,
        "deepstack_visual_indexes": [1, 2] if text_width == TEXT_WIDTH else [],
    }
    rope = {"rope_type": "default", "rope_theta": 1e6, "mrope_section": [12, 10, 10], "mrope_interleaved": True}
    text = {"hidden_size": text_width, "head_dim": 64, "rope_parameters": rope}
    qwen("Qwen3VL", folder, vision, text, max_pixels)


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


MAKERS = {"qwen2_5_vl": qwen2_5_vl, "qwen3_vl": qwen3_vl, "llava": llava}


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("kind", choices=MAKERS)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--depth", type=int, default=DEFAULT_TOWER.depth)
    parser.add_argument("--width", type=int, default=DEFAULT_TOWER.width)
    parser.add_argument("--max-pixels", type=int, default=DEFAULT_MAX_PIXELS)
    parser.add_argument("--text-width", type=int, default=TEXT_WIDTH, help="of qwen3_vl")
    given = parser.parse_args()
    tower = Tower(given.depth, given.width)
    if given.text_width != TEXT_WIDTH:
        qwen3_vl(given.folder, tower, given.max_pixels, given.text_width)
    else:
        make(given.kind, given.folder, tower, given.max_pixels)


if __name__ == "__main__":
    main()
