"""Shares the preprocessed media of SGLang's servers: a picture that the host has processed is not processed again.

    SGLang's processor ──looks for an artifact──> SharedPreprocessCache ──> its own ──miss──> `SharedArtifacts.find`
                       ──makes missing ones────> `SharedArtifacts.make` ──claim──> processed here, or found later
                                                                        processed: returned, and put meanwhile

An *artifact* is what SGLang keeps of one picture between requests: the tensor that the tower reads, and the grid that
the prompt depends on. Its key is SGLang's, of the file's content and of the options, and so is the hash that the item
gets. All of this happens in the process that answers HTTP, before a request goes to the ranks; what these get has
tensors of its own process. An artifact without a form in plain values, or without its tensor on the CPU, is not shared.
"""

from __future__ import annotations

import asyncio
import dataclasses
import logging
import pkgutil
import time
from collections.abc import Callable, Coroutine, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import torch
from sglang.srt.multimodal.cache import (
    MultimodalPreprocessCache,
    build_processor_fingerprint,
    estimate_cache_size_bytes,
)
from sglang.srt.multimodal.media_artifacts.base import MediaArtifact, MediaArtifactCacheMixin, MediaArtifactInput
from sglang.srt.runtime_context import get_device, get_mm, get_model

from mmcached.cache.fingerprints import fingerprint
from mmcached.cache.output_names import PACKAGES
from mmcached.client import Claim, Client, InvalidRequest
from mmcached.client.saver import NotKept
from mmcached.integrations.processed_inputs.item_saver import ItemSaver
from mmcached.integrations.processed_inputs.items import ProcessedItem, ProcessedItems, ProcessingTimes
from mmcached.integrations.sglang.contact import log_contact
from mmcached.integrations.sglang.identity import OF_MODEL, OF_PROCESSOR, files_of_processor
from mmcached.integrations.sglang.settings import SglangSettings
from mmcached.worker.encoders.computing import computing_rows

TIMEOUT_S = 0.25
"""Deadline of a look-up, which asks the service only where its memory cannot be read. Requests wait for it."""
WAIT_S = 10.0
"""The longest wait for another process that makes an artifact."""
NUM_WAITING = 16
"""Artifacts that are claimed or waited for at the same time."""
_OF_SGLANG = "sglang.srt.multimodal."

_LOG = logging.getLogger("mmcached.sglang")

Make = Callable[[Sequence[MediaArtifactInput]], Coroutine[Any, Any, list[MediaArtifact]]]


class SharedArtifacts:
    """The artifacts of one processor in the store.

    Args:
        client: A client that fails open.
        processor: All that an artifact depends on beside its key, as JSON values.

    Attributes:
        keep: Called with the key of an artifact, and the artifact, if the store does not keep it; in any thread.
    """

    def __init__(self, client: Client, processor: Mapping[str, Any]) -> None:
        self.keep: Callable[[str, MediaArtifact], object] = lambda key, artifact: None
        self._items = ProcessedItems(client, processor, view=True, timeout_s=WAIT_S)
        self._saver: ItemSaver[MediaArtifact] = ItemSaver(client, fingerprint(processor), self._lose)
        self._times = ProcessingTimes()
        self._threads = ThreadPoolExecutor(NUM_WAITING, thread_name_prefix="mmcached-artifacts")

    def find(self, key: str) -> MediaArtifact | None:
        """Return an artifact whose tensors lie in the store, or soon will: read them, never write."""
        made = self._saver.get(key)
        if made is not None:
            return made
        found = self._items.find(key)
        return None if found is None else _artifact_of(key, found)

    async def make(self, own: Make, entries: Sequence[MediaArtifactInput]) -> list[MediaArtifact]:
        """Return the artifacts of decoded media; SGLang makes those that no other process makes or has made.

        Args:
            own: SGLang's way to make artifacts; runs in this event loop.
        """
        # Each is claimed and made by itself: a claim is never held while another one is waited for.
        return list(await asyncio.gather(*(self._find_or_make(own, entry) for entry in entries)))

    def drain(self, timeout_s: float) -> bool:
        """Wait until new artifacts have been put; return whether that is so."""
        return self._saver.drain(timeout_s)

    def close(self) -> None:
        """Wait for claims, and drop artifacts that wait to be put; the client stays open."""
        self._threads.shutdown()
        self._saver.close()

    async def _find_or_make(self, own: Make, entry: MediaArtifactInput) -> MediaArtifact:
        is_shared, claim = True, None
        if not self._times.are_short:
            asked = self._threads.submit(self._find_or_claim, entry)
            try:
                found = await asyncio.wrap_future(asked)
            except asyncio.CancelledError:
                asked.add_done_callback(_drop_claim)
                raise
            if not isinstance(found, Claim | None):
                return found
            is_shared, claim = found is not None, found
        try:
            began = time.monotonic()
            (made,) = await own([entry])
            self._times.note(time.monotonic() - began)
            num_bytes = estimate_cache_size_bytes(made)
        except BaseException:
            if claim is not None:
                claim.drop()
            raise
        if is_shared and num_bytes is not None:
            self._saver.save(entry.artifact_key, made, num_bytes, _processed_of, claim)
        elif claim is not None:
            claim.drop()
        return made

    def _lose(self, key: str, artifact: MediaArtifact) -> None:
        self.keep(key, artifact)

    def _find_or_claim(self, entry: MediaArtifactInput) -> MediaArtifact | Claim | None:
        """Return an artifact, or a claim on it; None: make it, and do not put it."""
        key = entry.artifact_key
        made = self._saver.get(key)
        if made is not None:
            return made
        try:
            found = self._items.find_or_claim(key)
        except InvalidRequest as error:
            _LOG.debug("%s is not shared: %s", key, error)
            return None
        if isinstance(found, Claim):
            return found
        artifact = _artifact_of(key, found)
        return artifact if artifact is not None and artifact.content_digest == entry.content_digest else None


def _drop_claim(asked: Future[MediaArtifact | Claim | None]) -> None:
    if not asked.cancelled() and isinstance(claim := asked.result(), Claim):
        claim.drop()


class SharedPreprocessCache(MultimodalPreprocessCache):
    """SGLang's cache of artifacts of one process, with the host's behind it.

    Artifacts that the store has, or that wait to be put, are not kept in the process as well.
    """

    def __init__(self, own: MultimodalPreprocessCache, artifacts: SharedArtifacts) -> None:
        super().__init__(own.max_size_bytes, own.max_entries)
        self._artifacts = artifacts
        artifacts.keep = self.keep

    @property
    def enabled(self) -> bool:
        """Whether SGLang looks here: also where its own cache has no room."""
        return True

    def get_if_present(
        self, key: str, predicate: Callable[[Any], bool], *, evict_on_reject: bool = False
    ) -> MediaArtifact | None:
        found = super().get_if_present(key, predicate, evict_on_reject=evict_on_reject)
        if found is None:
            found = self._artifacts.find(key)
            found = found if found is not None and predicate(found) else None
            self.hits += found is not None
        return found

    def keep(self, key: str, artifact: MediaArtifact) -> None:
        """Keep an artifact as SGLang does."""
        super().put(key, artifact.cache_value())

    def put(self, key: str, value: Any, size_bytes: int | None = None, **named: Any) -> bool:
        return self._artifacts.find(key) is None and bool(super().put(key, value, size_bytes, **named))


def share(processor: Any, client: Client) -> SharedArtifacts | None:
    """Make a processor of SGLang look for its artifacts in the store; None if they cannot be shared."""
    reason, files = _why_not(processor), None
    try:
        files = None if reason else files_of_processor(client)
    except OSError as error:
        reason = str(error)
    if files is None:
        _LOG.warning("mmcached: processed inputs are not shared: %s", reason or "no folder here has the processor")
        return None
    if processor.processor_fingerprint is None:  # SGLang makes it only where its own cache has room
        processor.processor_fingerprint = build_processor_fingerprint(processor, processor.hf_config)
    artifacts = SharedArtifacts(client, _parts(processor, files))
    processor.mm_preprocess_cache = SharedPreprocessCache(processor.mm_preprocess_cache, artifacts)
    own = processor._run_preprocess_and_build_artifact_batch

    async def make(entries: Sequence[MediaArtifactInput]) -> list[MediaArtifact]:
        return await artifacts.make(own, entries)

    processor._run_preprocess_and_build_artifact_batch = make
    return artifacts


def share_in_server(result: None, manager: Any, *arguments: Any, **named: Any) -> None:
    """Share the processor that SGLang has just made in the process that answers HTTP; SGLang calls this."""
    processor = manager.mm_processor
    if processor is None:
        return
    run_dir = SglangSettings.read().run_dir
    client = Client(run_dir, timeout_s=TIMEOUT_S, connect_timeout_s=TIMEOUT_S, name="sglang")
    if share(processor, client) is None:
        client.close()
    else:
        log_contact(client, "processed inputs")


def _why_not(processor: Any) -> str | None:
    if not isinstance(processor, MediaArtifactCacheMixin):
        return f"{type(processor).__name__} does not keep what it makes of one picture apart"
    if not type(processor).__module__.startswith(_OF_SGLANG):
        return f"{type(processor).__name__} is not SGLang's own, and its version is unknown"
    if processor.keep_mm_features_on_device:
        return f"--mm-feature-transport {processor.mm_feature_transport} keeps pixels on the device"
    return None


def _parts(processor: Any, files: str) -> dict[str, Any]:
    """Return all that artifacts depend on beside the content and SGLang's own fingerprint, which the key has."""
    return {
        "host": "sglang",
        "class": f"{type(processor).__module__}.{type(processor).__qualname__}",
        "files": files,
        "options": {name: getattr(get_mm(), name) for name in OF_PROCESSOR},
        "model": {name: getattr(get_model(), name) for name in OF_MODEL},
        **computing_rows(torch.device(get_device().device), PACKAGES),
    }


def _processed_of(artifact: MediaArtifact) -> ProcessedItem:
    """Return an artifact as two records; raise `NotKept` if plain values cannot represent it."""
    kept: Any = artifact.cache_value()
    kind = type(kept)
    if not kept.has_feature or not dataclasses.is_dataclass(kept) or not kind.__module__.startswith(_OF_SGLANG):
        raise NotKept(f"a {kind.__name__}")
    values = {field.name: getattr(kept, field.name) for field in dataclasses.fields(kept)}
    if not all(map(_is_plain, values.values())):
        raise NotKept(f"a {kind.__name__} with other than plain values")
    feature = values.pop("feature")
    del values["artifact_key"]
    return ProcessedItem({"class": f"{kind.__module__}:{kind.__qualname__}", "values": values}, {"feature": feature})


def _artifact_of(key: str, item: ProcessedItem) -> MediaArtifact | None:
    """Return the artifact that two records describe; None if they describe none."""
    name = item.counts.get("class")
    if not isinstance(name, str) or not name.startswith(_OF_SGLANG):
        return None
    try:
        kind = pkgutil.resolve_name(name)
        artifact = kind(artifact_key=key, feature=item.pixels["feature"], **item.counts["values"])
    except (AttributeError, ImportError, KeyError, TypeError, ValueError):
        return None
    return artifact if isinstance(artifact, MediaArtifact) else None


def _is_plain(value: Any) -> bool:
    """Return whether a value comes back from a record with its type."""
    if type(value) is dict:
        return all(type(name) is str and _is_plain(each) for name, each in value.items())
    if type(value) is list:
        return all(map(_is_plain, value))
    if type(value) is torch.Tensor:
        return bool(value.device.type == "cpu")
    return value is None or type(value) in (bool, int, float, str)
