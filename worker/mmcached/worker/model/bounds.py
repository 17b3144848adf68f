"""Checks that no sum of the reference model exceeds `MAX_SUM`: the largest value of each kind of sum.

Checked once, when a model is created; `arithmetic` explains why bounded sums are exact. p is PRIME - 1, the largest
value and the largest weight.

    sum                          terms                              at most
    pixels                       2 * 3 * patch_size^2 features      2 * 3 * patch_size^2 * 255 * p
      + place                    row, column times a weight         2 * max_patches * p
    samples                      audio_frame features               audio_frame * 65535 * p
      + place                    frame times a weight               audio_window * p
    projection (q k v o, MLP)    one per input                      width * p * p
      + addend                   residual                           + 2 * p
    score                        one per dimension of a head        width * p * p
      + distance                 lag times the head's slope         + context * heads
    attention                    weight 1 … ATTENTION_MODULUS       context * ATTENTION_MODULUS * p
    square                       one                                p * p
    position                     three digits times a weight        p + 3 * p * max(p, context)
    tie-breaking key             logit, then the id                 (p + 1) * vocabulary
"""

from __future__ import annotations

from mmcached.wire.errors import ConfigError
from mmcached.wire.model_config import ModelConfig
from mmcached.wire.vocabulary import VOCABULARY_SIZE
from mmcached.worker.model.arithmetic import MAX_SUM, PRIME

ATTENTION_MODULUS = 13
"""Attention weights are 1 … 13: never 0, so that every earlier token has an effect."""


def largest_sums(model: ModelConfig, max_model_len: int) -> dict[str, int]:
    """Return the upper bound of each kind of sum, by name; exact, in Python integers."""
    p = PRIME - 1
    width = max(model.hidden_size, model.encoder_width)
    context = max(max_model_len, model.max_patches_per_image, model.audio_window)
    return {
        "pixels": 2 * 3 * model.patch_size**2 * 255 * p + 2 * model.max_patches_per_image * p,
        "samples": model.audio_frame * 65_535 * p + model.audio_window * p,
        "projection": width * p * p + 2 * p,
        "score": width * p * p + context * model.num_heads,
        "attention": context * ATTENTION_MODULUS * p,
        "square": p * p,
        "position": p + 3 * p * max(p, context),
        "key": (p + 1) * VOCABULARY_SIZE,
    }


def check_bounds(model: ModelConfig, max_model_len: int) -> None:
    """Raise `ConfigError`, with the kind of sum and its bound, for sizes for which a sum could be rounded."""
    for name, largest in largest_sums(model, max_model_len).items():
        if largest > MAX_SUM:
            raise ConfigError(f"model ({name})", largest, f"sums must stay within {MAX_SUM} to be exact")
