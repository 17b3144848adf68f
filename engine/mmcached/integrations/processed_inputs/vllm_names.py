"""Computes the fingerprint of vLLM's processor: everything that an item depends on beside its content.

vLLM's hash of an item has its content, the processor's arguments of the request, and the model's name as it was given.
The bytes of the processor's and tokenizer's files, versions, environment variables, and the arguments of the server
come from here.
"""

from __future__ import annotations

from typing import Any

from mmcached.cache.output_names import PACKAGES, computing_variables
from mmcached.client import Client
from mmcached.integrations.identity import OF_PROCESSORS, checkpoint_folder, checkpoint_identity
from mmcached.wire.extras import package_versions

_ARGUMENTS = ("limit_per_prompt", "mm_processor_kwargs", "media_io_kwargs", "video_pruning_rate")


def processor_parts(model_config: Any, client: Client) -> dict[str, Any]:
    """Return all that items depend on, as JSON values.

    Args:
        model_config: vLLM's model configuration.

    Raises:
        OSError: The checkpoint's files are not on this host.
    """
    encoder = model_config.multimodal_config
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
        "arguments": {name: str(getattr(encoder, name, None)) for name in _ARGUMENTS},
    }
