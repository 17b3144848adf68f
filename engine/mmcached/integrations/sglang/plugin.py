"""Registers the configured parts of the adapter in a process of SGLang; SGLang calls it, and logs its errors.

    MMCACHED_SGLANG unset ──> nothing is imported, nothing changes
                    set ────> version, settings, places to hook into: all there? ──> registered | ConfigError

SGLang's command line has one store of embeddings, "mooncake"; this adapter takes that name, and SGLang logs that it was
overwritten.
"""

from __future__ import annotations

import pkgutil
import re
from importlib import metadata

from mmcached.integrations.sglang.settings import ASKED, EMBEDDING_STORE, ENGINE_CACHE, PROCESSED_INPUTS, SglangSettings
from mmcached.wire.errors import ConfigError

FIRST = (0, 5, 23)
"""The first version of SGLang that the adapter was tested with."""
END = (0, 6)
BACKEND = "mooncake"
MAKES_THE_CACHE = "sglang.srt.managers.mm_schedule.init_mm_embedding_cache"
MAKES_THE_MODEL = "sglang.srt.model_executor.model_runner.ModelRunner.load_model"
FLUSHES = "sglang.srt.managers.scheduler.Scheduler.flush_cache"
UPDATES = tuple(
    f"sglang.srt.managers.scheduler_components.weight_updater.SchedulerWeightUpdaterManager.{name}"
    for name in (
        "update_weights_from_disk",
        "update_weights_from_distributed",
        "update_weights_from_tensor",
        "update_weights_from_ipc",
        "begin_weight_update",
        "end_weight_update",
        "release_memory_occupation",
        "resume_memory_occupation",
    )
)
MAKES_THE_PROCESSOR = "sglang.srt.managers.tokenizer_manager.TokenizerManager.init_tokenizer_and_processor"
MAKES_ARTIFACTS = (
    "sglang.srt.multimodal.media_artifacts.base.MediaArtifactCacheMixin._run_preprocess_and_build_artifact_batch"
)


def register() -> None:
    """Register the parts that the environment configures.

    Raises:
        ConfigError: This version of SGLang is not supported, or the environment has an invalid setting.
    """
    settings = SglangSettings.read()
    if not settings.asked:
        return
    check_version(metadata.version("sglang"))
    _check_hashes()
    if ENGINE_CACHE in settings.asked:
        _register_engine_cache()
    if EMBEDDING_STORE in settings.asked:
        _register_embedding_store()
    if PROCESSED_INPUTS in settings.asked:
        _register_processed_inputs()


def check_version(version: str, asked: str = ASKED) -> None:
    """Raise ConfigError, about the variable that asked for the adapter, unless 0.5.23 <= version < 0.6."""
    found = re.match(r"\d+(\.\d+)*", version)
    numbers = tuple(map(int, found[0].split("."))) if found else ()
    if not FIRST <= numbers < END:
        wanted = f"{'.'.join(map(str, FIRST))} or later, below {'.'.join(map(str, END))}"
        raise ConfigError(asked, f"with sglang {version}", f"needs {wanted}")


def _check_hashes() -> None:
    from sglang.srt.environ import envs

    if envs.SGLANG_MM_SKIP_COMPUTE_HASH.get():
        raise ConfigError(ASKED, "with SGLANG_MM_SKIP_COMPUTE_HASH", "needs hashes: items get names at random without")


def _register_engine_cache() -> None:
    from sglang.srt.plugins.hook_registry import HookRegistry, HookType

    for place in (MAKES_THE_MODEL, MAKES_THE_CACHE, FLUSHES, *UPDATES):
        _check_place(place, ENGINE_CACHE)
    from mmcached.integrations.sglang.engine_cache import clear_after_flush, clear_after_update, install
    from mmcached.integrations.sglang.tower import note_runner

    HookRegistry.register(MAKES_THE_MODEL, note_runner, HookType.AFTER)
    HookRegistry.register(MAKES_THE_CACHE, install, HookType.AFTER)
    HookRegistry.register(FLUSHES, clear_after_flush, HookType.AFTER)
    for place in UPDATES:
        HookRegistry.register(place, clear_after_update, HookType.AFTER)


def _register_embedding_store() -> None:
    from sglang.srt.mem_cache.embedding_store import EmbeddingStoreFactory

    from mmcached.integrations.sglang.children import reach_children

    reach_children()
    EmbeddingStoreFactory.register_backend(
        BACKEND, "mmcached.integrations.sglang.embedding_store", "MmcachedEmbeddingStore"
    )


def _register_processed_inputs() -> None:
    from sglang.srt.plugins.hook_registry import HookRegistry, HookType

    for place in (MAKES_THE_PROCESSOR, MAKES_ARTIFACTS):
        _check_place(place, PROCESSED_INPUTS)
    from mmcached.integrations.sglang.processed_inputs import share_in_server

    HookRegistry.register(MAKES_THE_PROCESSOR, share_in_server, HookType.AFTER)


def _check_place(place: str, part: str) -> None:
    """Refuse an SGLang that lacks a place to hook into: it would only log that, and go on with stale embeddings."""
    try:
        pkgutil.resolve_name(place)
    except (AttributeError, ImportError) as error:
        raise ConfigError(ASKED, part, f"{place} is not in this SGLang: {error}") from error
