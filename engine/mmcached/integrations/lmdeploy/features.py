"""Puts the store behind one `ImageEncoder` of LMDeploy.

    messages ──items──> look up ──all found──> messages with features
                           └──some missing──> LMDeploy's own `async_infer` with these ──> saved, put between the others

Looking up and saving run in LMDeploy's own thread for the encoder, one call at a time. Calls that the adapter does not
know (other layouts of messages, items without readable content) go to LMDeploy unchanged.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Sequence
from itertools import compress
from typing import Any

import torch

from mmcached.cache.name_files import note_name
from mmcached.cache.store_keys import output_key
from mmcached.client import Client
from mmcached.client.device.devices import device_of
from mmcached.client.saver import Saver
from mmcached.integrations.lmdeploy.messages import (
    Item,
    Message,
    content_of,
    features_by_item,
    items_in,
    num_features,
    with_items,
)
from mmcached.integrations.lmdeploy.tower import Tower
from mmcached.integrations.record_form import RecordForm
from mmcached.integrations.shared_embeddings import TOGETHER_S
from mmcached.wire.closeable import Closeable

_LOG = logging.getLogger("mmcached.lmdeploy")
FEATURES = "features"
TIMEOUT_S = 0.25
"""Deadline of a look-up, which asks the service only where its memory cannot be read."""
Infer = Callable[[list[Message]], Awaitable[list[Message]]]
Features = list[torch.Tensor]


class SharedFeatures(Closeable):
    """The features of one encoder, in the store.

    Args:
        encoder: LMDeploy's `ImageEncoder`.
        run_dir: Run directory of the service; None for the default of `mmcached serve`.
        namespace: Name of the checkpoint's small files, for a checkpoint that is not on this host; empty: their bytes.
        max_save_bytes: Bytes of features that may wait to be saved.

    Attributes:
        saver: Puts new features.
        num_items: Items looked up.
        num_found: Those whose features the host had.

    Raises:
        ConfigError, OSError: The weights or the checkpoint cannot be read.
    """

    def __init__(self, encoder: Any, run_dir: str | None, *, namespace: str, max_save_bytes: int) -> None:
        self.num_items = self.num_found = 0
        self._encoder = encoder
        self._namespace = namespace
        self._tower = Tower(encoder.model)
        self._client = Client(run_dir, timeout_s=TIMEOUT_S, connect_timeout_s=TIMEOUT_S, name="lmdeploy")
        self.saver = Saver(self._client, max_bytes=max_save_bytes, delay_s=TOGETHER_S)
        self._device = device_of(str(self._tower.device), max_pinned_bytes=0)
        self._said: set[str] = set()
        self.name = self._make_name()

    async def infer(self, messages: list[Message], own: Infer) -> list[Message]:
        """Do what LMDeploy's `async_infer` does, with the features that the host has.

        Args:
            own: LMDeploy's method.
        """
        items = items_in(messages)
        seen = await self._in_thread(self._look_up, items) if items else None
        if seen is None:
            return await own(messages)
        keys, found, reading = seen
        missing = [features is None for features in found]
        if any(missing):
            left = list(compress(items, missing))
            began = time.perf_counter()
            made = features_by_item(await own(with_items(messages, missing)), left)
            cost_s = (time.perf_counter() - began) / len(left)
            if made is None:
                self._say("LMDeploy's messages have no features where the adapter knows them")
                return await own(messages)
            await self._in_thread(self._save, list(compress(keys, missing)), left, made, cost_s, reading)
            rest = iter(made)
            found = [next(rest) if features is None else features for features in found]
        messages.append({"role": "forward", "content": [each for features in found for each in features or []]})
        return messages

    def close(self) -> None:
        self.saver.close()
        self._client.close()

    # ---- in the encoder's thread

    async def _in_thread(self, call: Callable[..., Any], *values: Any) -> Any:
        return await asyncio.get_running_loop().run_in_executor(self._encoder.executor, call, *values)

    def _make_name(self) -> str:
        rows = self._tower.rows(self._tower.read(), self._client, self._namespace)
        return note_name(self._client.run_dir, rows)

    def _keys(self, items: Sequence[Item]) -> list[str] | None:
        """Return the keys of items; None where nothing can be shared."""
        try:
            if self._tower.is_written():
                self.name = self._make_name()
            return [output_key(self.name, content_of(item)) for item in items]
        except Exception as error:  # unreadable values or weights: LMDeploy computes without us
            self._say(f"{type(error).__name__}: {error}")
            return None

    def _look_up(self, items: Sequence[Item]) -> tuple[list[str], list[Features | None], int] | None:
        """Return the keys of items, what the store has under them, and the number of the reading of the weights that
        named them; None where nothing can be shared.
        """
        keys = self._keys(items)
        if keys is None:
            return None
        hits = self._client.get_many(keys)
        found = [
            None if hit is None else self._checked(key, item, hit.record)
            for key, item, hit in zip(keys, items, hits, strict=True)
        ]
        self.num_items += len(found)
        self.num_found += sum(features is not None for features in found)
        return keys, found, self._tower.num_readings

    def _checked(self, key: str, item: Item, record: Any) -> Features | None:
        """Return the features in a record; None after dropping it if it has another form."""
        if self._form(item).check(record) is not None:
            self._client.drop(key)
            return None
        return list(record[FEATURES])

    def _save(
        self, keys: Sequence[str], items: Sequence[Item], made: Sequence[Features], cost_s: float, reading: int
    ) -> None:
        if self._tower.num_readings != reading or self._tower.is_written():
            return  # the weights that were named may not be those that encoded
        for key, item, features in zip(keys, items, made, strict=True):
            # LMDeploy may change a feature while it is saved, and one may be a part of a larger tensor.
            wait = self._device.begin_copy([each.detach().clone() for each in features])
            nbytes = sum(each.nbytes for each in features)
            self.saver.save(key, nbytes, self._make_record(item, wait), cost_s=lambda: cost_s)

    def _make_record(self, item: Item, wait: Callable[[], list[torch.Tensor]]) -> Callable[[], dict[str, Any]]:
        def make() -> dict[str, Any]:
            record = {FEATURES: list(wait())}
            if (reason := self._form(item).check(record)) is not None:
                raise ValueError(f"a feature has another form than the model's configuration says: {reason}")
            return record

        return make

    def _form(self, item: Item) -> RecordForm:
        return RecordForm({FEATURES: (self._tower.form(item),) * num_features(item)})

    def _say(self, reason: str) -> None:
        if reason not in self._said:
            self._said.add(reason)
            _LOG.warning("mmcached: image features are not shared: %s", reason)
