"""Checks that a scheduler's requests and caches agree."""

from __future__ import annotations

from mmcached.engine import RequestStatus, Scheduler
from mmcached.engine.encoder.encoder_cache_table import EncoderCacheTable
from mmcached.engine.encoder.encoder_entry import all_entries
from mmcached.engine.hidden_states.tensor_prefix_index import TensorPrefixIndex
from tests.engine.kv.integrity import check_kv


def check_scheduler(scheduler: Scheduler) -> None:
    check_kv(scheduler.caches.kv)
    check_encoder(scheduler.caches.encoder)
    check_index(scheduler.caches.prefix_index)
    queued = [*scheduler._running, *scheduler._waiting]
    assert len(queued) == len(scheduler._requests)
    assert {request.request_id for request in queued} == scheduler._requests.keys()
    for request in scheduler._waiting:
        assert not request.num_computed_tokens
        assert request.status is RequestStatus.WAITING
    for request in scheduler._running:
        table = scheduler.kv_cache_manager.block_table(request.request_id)
        assert len(table) * scheduler._config.block_size >= request.num_computed_tokens
    alone = {request.request_id for request in queued if request.alone_until}
    assert alone == {request.request_id for request in scheduler.suspects._requests}
    assert scheduler.caches.holders() <= {request.request_id for request in scheduler._running}


def check_encoder(table: EncoderCacheTable) -> None:
    """Check entries, references and free slots of an encoder cache manager."""
    entries, evictable = all_entries(table._entries, table._held), table._evictable
    assert table.num_free_slots + sum(entry.num_embeds for entry in entries) == table.cache_size
    assert table.num_free_slots >= 0
    assert table.num_freeable_slots == table.num_free_slots + sum(entry.num_embeds for entry in evictable.values())
    by_key = {entry.key: entry for entry in entries}
    assert len(by_key) == len(entries), "two entries have the same key"
    references = dict.fromkeys(by_key, 0)
    for items in table._held.values():
        assert items, "a request is listed without references"
        for entry in items.values():
            assert by_key[entry.key] is entry
            references[entry.key] += 1
    for entry in entries:
        assert entry.num_references == references[entry.key], entry
        assert entry.is_old != (table._entries.get(entry.content) is entry), entry
        assert (not entry.num_references) == (not entry.is_old and entry.content in evictable), entry
    assert evictable.keys() <= table._entries.keys()
    assert not table._reserved or table._step.is_open
    assert all(by_key[entry.key] is entry and entry.num_references for entry, *_ in table._reserved.values())


def check_index(index: TensorPrefixIndex) -> None:
    """Check that rows are listed in full blocks alike in both tables, and reserved in an open step only."""
    listed = index.listed
    assert len(listed.rows) <= listed._max_blocks
    for rows in listed.rows.values():
        assert rows
        assert all(0 < num <= listed._block_size for num in rows.values())
    for key, full in listed._full.items():
        assert full == {digest for digest, rows in listed.rows.items() if rows.get(key, 0) == listed._block_size}
    assert index._step.is_open or not (index._reserved or index._taking_part)
    assert index._taking_part <= index._tracked.keys()
