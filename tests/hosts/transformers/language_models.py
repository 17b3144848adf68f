"""Writes small checkpoints of language models with random weights; says what Transformers alone generates."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import torch
import transformers
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors, trainers

VOCABULARY = 512
_SIZES = {
    "vocab_size": VOCABULARY,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "max_position_embeddings": 8192,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "initializer_range": 0.2,
}
FAMILIES: Mapping[str, tuple[str, Mapping[str, Any]]] = {
    "llama": ("Llama", {"tie_word_embeddings": False}),
    "qwen2": ("Qwen2", {"use_sliding_window": True, "sliding_window": 40, "max_window_layers": 1}),
    "qwen3": ("Qwen3", {}),
    "gemma3": ("Gemma3Text", {"sliding_window": 32, "layer_types": ["sliding_attention"] * 2 + ["full_attention"]}),
}
"""By family: the prefix of its configuration class, and settings; windows are shorter than the tests' prompts."""
CHAT_TEMPLATE = """{{ bos_token }}{% for message in messages %}<|im_start|>{{ message.role }}
{{ message.content | trim }}<|im_end|>
{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant
{% endif %}"""
_CORPUS = [
    "The quick brown fox jumps over the lazy dog. “Größe”, said the fox, “naïve café”, and 你好世界 it jumped again.",
    "What is in the picture? A dog, a fox, and the brown fence over which they jump, jump and jump again.",
]


def save(family: str, folder: Path, dtype: torch.dtype = torch.float32, *, seed: int = 0, **sizes: int) -> Path:
    """Write a checkpoint with random weights; return its folder."""
    name, settings = FAMILIES[family]
    config = getattr(transformers, f"{name}Config")(**{**_SIZES, **settings, **sizes})
    torch.manual_seed(seed)
    model = getattr(transformers, f"{name.removesuffix('Text')}ForCausalLM")(config)
    model.to(dtype).save_pretrained(folder)
    return folder


@cache
def loaded(folder: Path) -> Any:
    return transformers.AutoModelForCausalLM.from_pretrained(folder, dtype="auto").eval()


def alone(folder: Path, prompt: Sequence[int], max_tokens: int, **settings: Any) -> list[int]:
    """Return what `generate` of Transformers continues a prompt with."""
    inputs = torch.tensor([list(prompt)])
    output = loaded(folder).generate(inputs, max_new_tokens=max_tokens, do_sample=False, **settings)
    return [int(token) for token in output[0, len(prompt) :]]


_TILES = [f"<row_{row}_col_{column}>" for row in range(1, 4) for column in range(1, 4)]
SPECIAL = {
    "<image>": 500,
    **{each: 501 + number for number, each in enumerate(["<fake_token_around_image>", "<global-img>", *_TILES])},
}
"""Tokens around pictures and tiles of pictures."""


def write_tokenizer(folder: Path) -> None:
    """Write a tokenizer of bytes, which puts the begin token in front of a text; two ends of lines are one token."""
    letters = {letter: 3 + number for number, letter in enumerate(sorted(pre_tokenizers.ByteLevel.alphabet()))}
    vocabulary = {"<pad>": 0, "<s>": 1, "</s>": 2, **letters, "ĊĊ": 260, **SPECIAL}
    tokenizer = Tokenizer(models.BPE(vocab=vocabulary, merges=[("Ċ", "Ċ")]))
    tokenizer.add_special_tokens([*SPECIAL])
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.post_processor = processors.TemplateProcessing(single="<s> $A", special_tokens=[("<s>", 1)])
    tokenizer.save(str(folder / "tokenizer.json"))


def write_chat_tokenizer(folder: Path, chat_template: str | None = CHAT_TEMPLATE) -> Any:
    """Write a tokenizer with tokens of several letters, and of parts of letters, and a chat template; return it."""
    raw = Tokenizer(models.BPE())
    raw.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    raw.decoder = decoders.ByteLevel()
    special = ["<pad>", "<s>", "</s>", "<|im_start|>", "<|im_end|>"]
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    raw.train_from_iterator(
        _CORPUS,
        trainers.BpeTrainer(
            vocab_size=400, special_tokens=special, initial_alphabet=alphabet, min_frequency=1, show_progress=False
        ),
    )
    raw.post_processor = processors.TemplateProcessing(single="<s> $A", special_tokens=[("<s>", 1)])
    tokenizer = transformers.PreTrainedTokenizerFast(
        tokenizer_object=raw, bos_token="<s>", eos_token="</s>", pad_token="<pad>", chat_template=chat_template
    )
    tokenizer.save_pretrained(folder)
    return tokenizer
