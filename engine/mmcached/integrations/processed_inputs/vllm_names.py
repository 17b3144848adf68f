"""Computes the fingerprint of vLLM's processor: everything that an item depends on beside its content.

vLLM's hash of an item has its content, the processor's arguments of the request, and the model's name as it was given.
The bytes of the processor's and tokenizer's files, versions, environment variables, and the arguments of the server
come from here. An unknown multimodal setting counts: two servers that differ in an irrelevant one process for
themselves, which is better than a wrong item.
"""

from __future__ import annotations

from typing import Any

from mmcached.cache.output_names import PACKAGES, computing_variables
from mmcached.client import Client
from mmcached.integrations.identity import OF_PROCESSORS, checkpoint_folder, checkpoint_identity
from mmcached.integrations.vllm.keys import OF_PROCESSOR
from mmcached.wire.extras import package_versions

_NOT_OF_ITEMS = frozenset(
    {
        *("mm_processor_cache_gb", "mm_processor_cache_type", "mm_shm_cache_max_object_size_mb", "mm_hasher_algorithm"),
        *("mm_tensor_ipc", "mm_ipc_gpu_memory_gb", "skip_mm_profiling", "interleave_mm_strings"),
        *("language_model_only", "enable_mm_embeds", "allow_missing_mm_embeddings"),
        *("mm_encoder_only", "mm_encoder_tp_mode", "mm_encoder_attn_backend", "mm_encoder_attn_dtype"),
        *("mm_encoder_fp8_scale_path", "mm_encoder_fp8_scale_save_path", "mm_encoder_fp8_scale_save_margin"),
    }
)
"""vLLM's multimodal settings of caches, transport and the encoder."""
_SIZED_BY_CONTEXT = ("NemotronH_", "Dots3Note")
"""Beginnings of the names of architectures whose processors limit items to `max_model_len`."""


def processor_parts(model_config: Any, client: Client) -> dict[str, Any]:
    """Return all that items depend on, as JSON values.

    Args:
        model_config: vLLM's model configuration.

    Raises:
        OSError: The checkpoint's files are not on this host.
    """
    multimodal = vars(model_config.multimodal_config)
    files = checkpoint_folder(model_config.model, model_config.revision)
    tokenizer = checkpoint_folder(model_config.tokenizer, model_config.tokenizer_revision)
    return {
        "host": "vllm",
        "versions": package_versions(PACKAGES),
        "variables": computing_variables(),
        "files": checkpoint_identity(files, client, suffixes=OF_PROCESSORS),
        "tokenizer": checkpoint_identity(tokenizer, client, suffixes=OF_PROCESSORS),
        "config": str(model_config.hf_config.to_dict()),
        "dtype": str(model_config.dtype),
        "arguments": {name: str(value) for name, value in sorted(multimodal.items()) if name not in _NOT_OF_ITEMS},
        "model": {
            name: str(getattr(model_config, name, None)) for name in ("architecture", "model_impl", *OF_PROCESSOR)
        },
        "context": model_config.max_model_len if model_config.architecture.startswith(_SIZED_BY_CONTEXT) else None,
    }
