"""Folders with tiny pipelines as diffusers saves them, with random weights that depend on a seed."""

from __future__ import annotations

import json
from pathlib import Path
from string import ascii_lowercase

import diffusers
import torch
import transformers
from tokenizers import Tokenizer, models, pre_tokenizers, processors

CLIP = {
    **{"vocab_size": 54, "hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4},
    **{"max_position_embeddings": 77, "bos_token_id": 52, "eos_token_id": 53, "pad_token_id": 53, "projection_dim": 32},
}
T5 = {"vocab_size": 64, "d_model": 32, "d_kv": 8, "d_ff": 64, "num_layers": 2, "num_heads": 4}


def write_flux(folder: Path, *, seed: int = 0) -> Path:
    """Write a pipeline of Flux's kind: CLIP, T5, a transformer and a VAE."""
    torch.manual_seed(seed)
    pipeline = diffusers.FluxPipeline(
        transformer=diffusers.FluxTransformer2DModel(
            **{"in_channels": 4, "num_layers": 1, "num_single_layers": 1, "attention_head_dim": 16},
            **{"num_attention_heads": 2, "joint_attention_dim": 32, "pooled_projection_dim": 32},
            axes_dims_rope=(4, 4, 8),
        ),
        scheduler=diffusers.FlowMatchEulerDiscreteScheduler(),
        vae=diffusers.AutoencoderKL(
            block_out_channels=(4, 8),
            down_block_types=("DownEncoderBlock2D",) * 2,
            up_block_types=("UpDecoderBlock2D",) * 2,
            latent_channels=1,
            norm_num_groups=2,
            shift_factor=0.0,
        ),
        text_encoder=transformers.CLIPTextModel(transformers.CLIPTextConfig(**CLIP)),
        tokenizer=clip_tokenizer(folder / "made"),
        text_encoder_2=transformers.T5EncoderModel(transformers.T5Config(**T5, feed_forward_proj="gated-gelu")),
        tokenizer_2=t5_tokenizer(),
    )
    pipeline.save_pretrained(folder)
    return folder


def clip_tokenizer(folder: Path) -> transformers.CLIPTokenizer:
    """Return a tokenizer whose tokens are letters."""
    folder.mkdir(parents=True)
    tokens = [*ascii_lowercase, *(f"{letter}</w>" for letter in ascii_lowercase), "<|startoftext|>", "<|endoftext|>"]
    (folder / "vocab.json").write_text(json.dumps({token: place for place, token in enumerate(tokens)}))
    (folder / "merges.txt").write_text("#version: 0.2\n")
    return transformers.CLIPTokenizer.from_pretrained(folder, model_max_length=77)


def t5_tokenizer() -> transformers.PreTrainedTokenizerBase:
    ends = {"pad_token": "<pad>", "eos_token": "</s>", "unk_token": "<unk>"}
    vocabulary = [(token, 0.0) for token in ends.values()] + [(letter, -1.0) for letter in f"▁{ascii_lowercase}"]
    tokenizer = Tokenizer(models.Unigram(vocabulary, unk_id=2))
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace()
    tokenizer.post_processor = processors.TemplateProcessing(single="$A </s>", special_tokens=[("</s>", 1)])
    return transformers.T5TokenizerFast(tokenizer_object=tokenizer, model_max_length=512, **ends)
