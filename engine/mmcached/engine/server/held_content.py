"""Tells the frontend which blocks and items the engine has cached, so that it can route prompts by prefix.

Sends changes; all content if the last message may be lost. Invariant: a frontend that has all messages since the last
one with `is_all` knows the exact content.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Set

import structlog

from mmcached.wire.errors import ChannelFull
from mmcached.wire.messages.frontend_from_engines import CacheChanged
from mmcached.wire.messages.kv_events import AllBlocksCleared, BlockRemoved, BlockStored, KVEvent

log = structlog.get_logger("mmcached.engine")


class ContentReporter:
    def __init__(self) -> None:
        self._blocks: set[bytes] = set()
        self._items: Set[str] = frozenset()
        self._changed_blocks: dict[bytes, bool] = {}  # since the last message: whether cached now
        self._known_items: Set[str] = frozenset()
        self._is_known = False

    def forget_frontend(self) -> None:
        """Send all content next time: the frontend is new, or has lost messages."""
        self._is_known = False

    def note(self, events: Iterable[KVEvent], items: Set[str]) -> None:
        """Record changes: KV events with digests as bytes, and all items whose encoder output is cached now."""
        self._items = items
        for event in events:
            match event:
                case BlockStored():
                    self._change(event.block_hashes, is_held=True)
                case BlockRemoved():
                    self._change(event.block_hashes, is_held=False)
                case AllBlocksCleared():
                    self._blocks.clear()
                    self._is_known = False

    def _change(self, digests: Iterable[bytes | int], *, is_held: bool) -> None:
        changed = [digest for digest in digests if isinstance(digest, bytes)]
        (self._blocks.update if is_held else self._blocks.difference_update)(changed)
        if self._is_known:  # else all content is sent
            self._changed_blocks.update(dict.fromkeys(changed, is_held))

    def tell(self, send: Callable[[CacheChanged], object]) -> None:
        """Send the changes that the frontend does not know, if any. `send` raises `ChannelFull` if it cannot."""
        message = self._news()
        if message is None:
            return
        try:
            send(message)
        except ChannelFull as error:
            log.warning("cache contents not sent to the frontend; retried later", reason=str(error))
            self._is_known = False
        else:
            self._is_known = True
            self._known_items = self._items
            self._changed_blocks.clear()

    def _news(self) -> CacheChanged | None:
        if not self._is_known:
            return CacheChanged(True, blocks=list(self._blocks), items=list(self._items))
        blocks: dict[bool, list[bytes]] = {True: [], False: []}
        for digest, is_held in self._changed_blocks.items():
            blocks[is_held].append(digest)
        items, dropped_items = self._items - self._known_items, self._known_items - self._items
        if not self._changed_blocks and not items and not dropped_items:
            return None
        return CacheChanged(False, blocks[True], blocks[False], list(items), list(dropped_items))
