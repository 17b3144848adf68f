"""Reads a worker's tower: the content of its weights, and what computes them. Runs in the worker, called by `weights`.

    parameters outside the language model ──all bytes, blake3──> `tower`
    the language model's word embeddings ──all bytes, blake3──> `words`, for models whose items have some of them

Of a weight that vLLM has packed for a CPU the digest is kept by `packed`.

Which modules are the language model's, vLLM's models say themselves (`_mark_language_model`, for `--mm-encoder-only`).
Some put word embeddings into an item, such as the time stamps of a video: their `embed_multimodal` names the language
model. Of a model that marks nothing every parameter counts.

Buffers that no checkpoint has follow from the configuration, and are not read: some grow with use. Later writes to what
was read are noticed by `watched_writes`.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch
from blake3 import blake3

from mmcached.cache.output_names import PACKAGES
from mmcached.integrations.method_code import names_behind
from mmcached.integrations.ranks import merged
from mmcached.integrations.tensor_parts import plain_parts
from mmcached.integrations.vllm.packed import packed_digest
from mmcached.integrations.watched_writes import watch_writes
from mmcached.worker.encoders.computing import computing_rows

_HEADS = frozenset({"lm_head", "logits_processor"})
_WORDS_IN_VIDEOS_ONLY = frozenset({"Qwen3VLForConditionalGeneration", "NemotronH_Nano_VL_V2"})
"""Classes, with their subclasses, whose images have no word embeddings although their videos do."""


def read_tower(worker: Any) -> dict[str, Any]:
    """Return what one rank knows of the tower, as JSON values.

    `tower`, `words`: digests of weights; None if this rank has none, or if items have no words
    `is_image_wordless`: images have no words, whatever other items have
    `device`, `libraries`, `variables`, `precision`: rows of `output_names.ROWS`
    """
    model = worker.get_model()
    tensors = dict(model.state_dict(keep_vars=True))
    marked = list(getattr(model, "_language_model_names", ()))
    of_text = {name for name in tensors if _is_below(name, marked) or not _HEADS.isdisjoint(name.split("."))}
    words = _words(model, of_text) if marked and _names_one_of(type(model), marked) else set()
    watch_writes(worker.vllm_config.ec_transfer_config.engine_id, model, (tensors.keys() - of_text) | words)
    device = next((value.device for value in tensors.values()), torch.device("cpu"))
    classes = {kind.__name__ for kind in type(model).__mro__}
    return {
        "tower": _digest(model, tensors, tensors.keys() - of_text),
        "words": _digest(model, tensors, words),
        "is_image_wordless": not words or not _WORDS_IN_VIDEOS_ONLY.isdisjoint(classes),
        **computing_rows(device, PACKAGES),
    }


def of_all_ranks(found: Iterable[dict[str, Any]]) -> dict[str, Any]:
    """Return what all ranks of an engine have read, as one; lists by rank where ranks differ, as their weights may.

    Ranks without a tower, as with pipeline parallelism, do not count for its digests.
    """
    ranks = list(found)
    digests = {name: merged(rank[name] for rank in ranks if rank[name] is not None) for name in ("tower", "words")}
    return {name: merged(rank[name] for rank in ranks) for name in ranks[0]} | digests


def _digest(model: torch.nn.Module, tensors: dict[str, torch.Tensor], names: Iterable[str]) -> str | None:
    chosen = sorted(names)
    if not chosen:
        return None
    digest = blake3(max_threads=blake3.AUTO)
    for name in chosen:
        value = tensors[name]
        if value.numel() == 0 and isinstance(value, torch.nn.Parameter):
            packed = packed_digest(model.get_submodule(name.rpartition(".")[0]))
            if packed is None:
                raise ValueError(f"{name} has no bytes: it was packed where it cannot be read")
            digest.update(f"{name} packed {packed}\n".encode())
            continue
        for part in plain_parts(value.data):
            flat = part.contiguous().reshape(-1).view(torch.uint8).cpu().numpy()
            digest.update(f"{name} {part.dtype} {list(part.shape)} {len(flat)}\n".encode())
            digest.update(flat.data)
    return digest.hexdigest()


def _is_below(name: str, parents: Iterable[str]) -> bool:
    return any(name == parent or name.startswith(f"{parent}.") for parent in parents)


def _words(model: torch.nn.Module, of_text: set[str]) -> set[str]:
    """Return the names of the language model's embeddings; of all its tensors if none looks like one."""
    found = {
        name
        for path, module in model.named_modules()
        if type(module).__name__.endswith("Embedding")
        for name in of_text
        if _is_below(name, [path])
    }
    return found or of_text


def _names_one_of(kind: type, marked: Iterable[str]) -> bool:
    """Return whether code behind `embed_multimodal` names the language model."""
    wanted = {"get_language_model", *(name.rpartition(".")[2] for name in marked)}
    return not wanted.isdisjoint(names_behind(kind, ["embed_multimodal"]))
