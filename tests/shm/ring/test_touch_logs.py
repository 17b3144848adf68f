from __future__ import annotations

import random

import pytest

from mmcached.shm.ring.touch_logs import is_of_generation
from mmcached.shm.segment.layout import (
    HITS_WORD,
    RETURNED_BYTES_WORD,
    SLOT_BITS,
    TAKEN_BYTES_WORD,
    TOUCH_LOG_WORDS,
    TOUCHES_WORD,
)
from mmcached.shm.segment.mapped import layout_of
from mmcached.wire.handle import Handle
from mmcached.wire.latency import NUM_BUCKETS, Histogram, Latency
from tests.shm.rings import attached, make_ring, overwritten, put, reading


def test_what_readers_have_found_by_themselves_outlives_what_nobody_has_found() -> None:
    with make_ring(8 * 64) as ring, attached(ring) as entry:
        heard: list[Handle] = []
        ring.on_hit = heard.append
        handles = [put(ring, 64) for _ in range(8)]
        entry.report_lookups([handles[0], handles[5]], 0)
        ring.readers.poll_hits()
        assert heard == [handles[0], handles[5]]
        for _ in range(6):
            put(ring, 64)
        assert [handle for handle in handles if ring.records.is_current(handle)] == [handles[0], handles[5]]


def test_what_is_counted_is_its_incarnations_also_what_it_has_counted_last() -> None:
    with make_ring() as ring:
        handle = put(ring, 10)
        counted: list[tuple[int, int, int]] = []
        ended: list[int] = []
        ring.readers.touch_logs.on_count = lambda *values: counted.append(values)
        ring.readers.touch_logs.on_end = ended.append
        lives = []
        for is_seen_dying in (True, False):
            with attached(ring) as entry:
                assert entry.reader_id == 0
                lives.append(entry.incarnation)
                entry.report_lookups([handle], 1)
                ring.readers.poll_hits()
                entry.report_lookups([], 2)  # and dies before the next look
            if is_seen_dying:
                ring.readers.poll_deaths()
        with attached(ring) as entry:
            assert entry.reader_id == 0
            assert ended == lives
            ring.readers.poll_deaths()
            entry.report_lookups([handle], 0)
            ring.readers.poll_hits()
        assert counted == [*((life, *new) for life in lives for new in ((1, 1), (0, 2))), (entry.incarnation, 1, 0)]
        assert ended == lives


def test_latencies_of_all_readers_add_up_and_survive_them() -> None:
    with make_ring() as ring:
        expected = Latency()
        for life in range(1, 3):
            with attached(ring) as entry:
                for duration_ns in (life * 1_000, 20_000, 10**12 // 64):
                    entry.count_latency(duration_ns)
                    expected.add(duration_ns / 1e9)
                for _ in range(2):
                    ring.readers.poll_hits()
                assert ring.readers.touch_logs.latency.histogram() == expected.histogram()
            assert len(ring.readers.poll_deaths()) == 1
        assert ring.readers.touch_logs.latency.histogram() == expected.histogram()


def test_a_reader_that_says_it_took_years_took_no_time() -> None:
    with make_ring() as ring, attached(ring) as entry, overwritten(ring.announcement.ctl_name) as words:
        layout = layout_of(ring.announcement)
        first = layout.entry_offset(entry.reader_id) // 8 + layout.first_latency_word
        for word in (0, NUM_BUCKETS):
            words[first + word] = 1 << 62
            ring.readers.poll_hits()
        assert ring.readers.touch_logs.latency.histogram() == Histogram()
        entry.count_latency(5)
        ring.readers.poll_hits()
        assert ring.readers.touch_logs.latency.histogram().num == 1


def test_a_log_that_was_overrun_has_lost_touches_and_nothing_else() -> None:
    with make_ring(num_slots=TOUCH_LOG_WORDS + 3) as ring, attached(ring) as entry:
        heard: list[Handle] = []
        ring.on_hit = heard.append
        handles = [put(ring, 64) for _ in range(TOUCH_LOG_WORDS + 3)]
        entry.report_lookups(handles, 1)
        ring.readers.poll_hits()
        assert heard == handles[3:]
        assert (ring.readers.touch_logs.num_hits, ring.readers.touch_logs.num_misses) == (TOUCH_LOG_WORDS + 3, 1)
        entry.report_lookups(handles[:1], 0)
        ring.readers.poll_hits()
        assert heard == [*handles[3:], handles[0]]


def test_the_words_of_a_wild_reader_change_nothing() -> None:
    rng = random.Random(1)
    with make_ring() as ring, attached(ring) as entry, overwritten(ring.announcement.ctl_name) as words:
        handles = [put(ring, 64) for _ in range(64)]
        assert ring.wait_populated(60)  # the figures have it
        before = ring.stats()
        layout = layout_of(ring.announcement)
        first = layout.entry_offset(entry.reader_id) // 8
        for word in (TAKEN_BYTES_WORD, HITS_WORD, TOUCHES_WORD):
            for value in (0, 1, (1 << 64) - 1, rng.getrandbits(64)):
                words[first + word] = value
                for place in range(TOUCH_LOG_WORDS):
                    is_near = rng.random() < 0.5  # of a slot that exists, in a generation that does not
                    touch = rng.randint(100, 200) << SLOT_BITS | rng.randrange(64) if is_near else rng.getrandbits(64)
                    words[first + layout.first_touch_word + place] = touch
                ring.readers.poll_hits()
        assert ring.stats() == before
        assert all(map(ring.records.is_current, handles))
        put(ring, 64 * 64)


def test_a_reader_that_gives_back_more_than_it_took_makes_no_room() -> None:
    with make_ring(shared_quota_bytes=500) as ring, attached(ring) as entry:
        with overwritten(ring.announcement.ctl_name) as words:
            words[layout_of(ring.announcement).entry_offset(entry.reader_id) // 8 + RETURNED_BYTES_WORD] = 1000
        ring.readers.poll_hits()
        with reading(ring) as reader:
            assert (reader.look.may_hold(500), reader.look.may_hold(501)) == (True, False)


@pytest.mark.parametrize("generation", [1, (1 << 44) + 1, (1 << 63) - 1])
def test_a_log_has_the_lower_bits_of_a_generation(generation: int) -> None:
    bits = (generation << SLOT_BITS & (1 << 64) - 1) >> SLOT_BITS
    assert is_of_generation(generation, bits)
    assert not is_of_generation(generation + 1, bits)


def test_a_reader_that_says_it_holds_everything_takes_its_own_share_and_no_more() -> None:
    with make_ring(shared_quota_bytes=500, reader_quota_bytes=200) as ring, attached(ring) as entry:
        with overwritten(ring.announcement.ctl_name) as words:
            first = layout_of(ring.announcement).entry_offset(entry.reader_id) // 8
            words[first + TAKEN_BYTES_WORD] = (1 << 64) - 1
            words[first + HITS_WORD] = (1 << 64) - 1
        ring.readers.poll_hits()
        assert (ring.readers.touch_logs.num_hits, ring.readers.touch_logs.num_misses) == (0, 0)
        with reading(ring) as reader:
            assert reader.look.may_hold(200), "others have what is left: 300"
