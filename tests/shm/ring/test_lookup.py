from __future__ import annotations

import msgspec
import pytest

from mmcached.shm import RingWriter
from mmcached.shm.ring import current_records
from mmcached.shm.ring.key_index import key_digest
from mmcached.shm.ring.slot_table import FIRST_KEY, HAS_CRC32, NBYTES, OFFSET, SECOND_KEY, KeyDigest, boot_ns, expiry_of
from mmcached.shm.segment.layout import SLOT_WORDS
from mmcached.shm.segment.mapped import layout_of
from mmcached.wire.handle import Handle
from tests.clock import boot_clock
from tests.shm.rings import Taking, attached, make_ring, overwritten, reading

A, B = key_digest("a"), key_digest("b")


def put(ring: RingWriter, key: KeyDigest, nbytes: int = 100, *, ttl_s: float = 0.0) -> Handle:
    claim = ring.claim(nbytes)
    claim.buffer[:] = 1
    handle = ring.commit(claim, key, expires_at=expiry_of(ttl_s))
    assert ring.index is not None
    ring.index.add(key, handle.slot)
    return handle


def test_a_key_leads_to_its_handle_from_commit_to_discard() -> None:
    with make_ring(has_index=True) as ring, reading(ring) as reader:
        assert reader.look.find(A) is None
        handle = put(ring, A)
        assert reader.look.find(A) == handle
        assert reader.look.find(B) is None
        ring.records.discard(handle)
        assert reader.look.find(A) is None


def test_a_record_that_has_expired_is_missing_and_a_lease_on_it_holds(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = boot_clock(monkeypatch)
    with make_ring(has_index=True) as ring, reading(ring) as reader, attached(ring) as entry:
        handle, other = put(ring, A, ttl_s=60.0), put(ring, B)
        assert (ring.records.expires_at(handle), ring.records.expires_at(other)) == (boot_ns() + 60 * 10**9, 0)
        clock.now += 59.9
        assert reader.look.find(A) == handle
        assert ring.records.expired(10) == []
        lease = Taking(handle)
        clock.now += 0.1
        assert reader.look.find(A) is None
        assert entry.take_leases([lease], reader.look) == [True], "it was found in time"
        assert reader.look.find_generation(handle.slot, handle.generation) == handle
        assert reader.look.find(B) == other
        assert ring.records.expired(10) == [handle]
        ring.records.discard(handle)
        assert ring.records.expired(10) == []
        assert ring.stats().pinned_bytes == 128
        entry.give_back(handle)


def test_expired_chunks_are_found_by_and_by(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = boot_clock(monkeypatch)
    monkeypatch.setattr(current_records, "SWEPT_SLOTS", 4)
    with make_ring(has_index=True, num_slots=10) as ring:
        keys = [key_digest(str(number)) for number in range(10)]
        handles = [put(ring, key, ttl_s=0.0 if number == 5 else 1.0) for number, key in enumerate(keys)]
        clock.now += 1
        found = list[Handle]()
        for number in (3, 1, 3, 2, 0):
            some = ring.records.expired(3)
            assert len(some) == number
            for handle in some:
                ring.records.discard(handle)
            found += some
        assert found == handles[:5] + handles[6:]


def test_the_digest_of_the_record_decides_not_the_index() -> None:
    other = (A[0] ^ 1, A[1])  # the index knows fewer bits
    with make_ring(has_index=True) as ring, reading(ring) as reader:
        first, second = put(ring, A), put(ring, other)
        assert reader.look.find(A) == first
        assert reader.look.find(other) == second
        assert ring.index is not None
        ring.index.discard(A, first.slot)
        ring.index.add(A, second.slot)  # an old word of the index
        assert reader.look.find(A) is None


@pytest.mark.parametrize(
    ("word", "value"),
    [(OFFSET, 1), (OFFSET, 1 << 63), (NBYTES, 0), (NBYTES, 1 << 16 | 1), (FIRST_KEY, 0), (SECOND_KEY, 0)],
)
def test_a_record_that_cannot_be_is_not_found(word: int, value: int) -> None:
    with make_ring(has_index=True) as ring, reading(ring) as reader:
        handle = put(ring, A)
        with overwritten(ring.announcement.data_name) as words:
            words[layout_of(ring.announcement).slots_offset // 8 + SLOT_WORDS * handle.slot + word] = value
        assert reader.look.find(A) is None


def test_an_index_that_names_no_slot_leads_nowhere() -> None:
    with make_ring(has_index=True, num_slots=4) as ring, reading(ring) as reader:
        assert ring.index is not None
        ring.index.add(A, 4)
        assert reader.look.find(A) is None


def test_a_handle_holds_while_its_slot_is_valid_and_is_checked_while_it_is_not_erased() -> None:
    with make_ring(has_index=True, has_checksums=True) as ring, reading(ring) as reader, attached(ring) as entry:
        look, handle = reader.look, put(ring, A)
        check = look.check_of(handle)
        assert look.holds(handle)
        assert check is not None
        assert check >= HAS_CRC32
        for change in ({"generation": handle.generation + 1}, {"offset": 64}, {"nbytes": 1}):
            assert look.check_of(msgspec.structs.replace(handle, **change)) is None
        assert not look.holds(msgspec.structs.replace(handle, generation=handle.generation + 1))
        assert entry.take_leases([Taking(handle)], look) == [True]
        ring.records.discard(handle)
        assert not look.holds(handle)
        assert look.check_of(handle) == check  # whoever has a lease reads on
        assert look.keeps(handle)
        assert look.find_generation(handle.slot, handle.generation) == handle
        entry.give_back(handle)
        while look.find_generation(handle.slot, handle.generation) is not None:  # until its bytes are used again
            ring.commit(ring.claim(100))
        assert not look.keeps(handle)
        assert look.find_generation(ring.announcement.num_slots, 1) is None


def test_the_board_says_who_may_take_leases_and_how_much() -> None:
    with make_ring(reader_quota_bytes=1000, shared_quota_bytes=500, has_index=True) as ring, reading(ring) as reader:
        look = reader.look
        with attached(ring) as entry:
            assert look.is_attached(entry.reader_id, entry.incarnation)
            assert not look.is_attached(entry.reader_id, entry.incarnation + 1)
            assert (look.may_hold(500), look.may_hold(501)) == (True, False)
            assert entry.take_leases([Taking(put(ring, A, 300))], look) == [True]
            ring.readers.poll_hits()
            assert (look.may_hold(200), look.may_hold(201)) == (True, False)
        ring.readers.poll_deaths()
        assert not look.is_attached(entry.reader_id, entry.incarnation)
        ring.readers.poll_hits()
        assert look.may_hold(500)
        ring.board.set_store_epoch(7)
        assert look.store_epoch == 7
