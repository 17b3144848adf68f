"""What lies in a ring comes onto the device bit for bit, and is not overwritten before; the rest is copied plainly.

The device is a stand-in that copies when the test says so; `test_devices` and `scripts.studies.gpu` want a real one.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator

import pytest
import torch

from mmcached.client.device.loader import MAX_GAP_BYTES, DeviceLoader
from mmcached.client.device.pinned_pages import PinnedPages
from mmcached.client.device.runtime import PageRefused
from tests.client.device.shared import RING_BYTES, Shared, output
from tests.client.records import is_equal
from tests.doubles.device import HeldCopies, ListedRuntime
from tests.integration.processes import DEADLINE_S, eventually
from tests.shm.rings import make_ring

PIECE_BYTES = 1 << 14


@contextlib.contextmanager
def loader_of(
    copies: HeldCopies, runtime: ListedRuntime | None = None, *, max_pinned_bytes: int = RING_BYTES
) -> Iterator[DeviceLoader]:
    with DeviceLoader(
        "cpu",
        max_pinned_bytes=max_pinned_bytes,
        piece_bytes=PIECE_BYTES,
        copies=copies,
        runtime=runtime or ListedRuntime(),
    ) as loader:
        yield loader


def test_a_record_is_one_copy_and_has_its_bits(shared: Shared) -> None:
    copies = HeldCopies(ends_at_once=True)
    with loader_of(copies, max_pinned_bytes=0) as loader:
        for seed in range(3):
            record = output(seed)
            found = shared.view(f"k{seed}", record)
            loaded = dict(zip(found, loader.load(list(found.values())), strict=True))
            assert is_equal(loaded, record)
            for tensor in loaded.values():
                tensor.zero_()  # it is the caller's own
            assert is_equal(found, record)
            del found
    assert len(copies.begun) == 3


def test_a_lease_ends_with_the_copy_and_not_before(shared: Shared) -> None:
    """Nothing of the record is kept but by the loader, while four times the ring is put."""
    copies = HeldCopies()
    with loader_of(copies) as loader:
        loaded = loader.load(list(shared.view("k", output(1)).values()))
        assert shared.num_leases() == 1
        for number in range(4 * RING_BYTES // (1 << 12)):
            shared.store.put(f"other {number}", {"x": torch.full((1 << 12,), 7, dtype=torch.uint8)})
        assert shared.num_leases() == 1
        copies.begun[0].end()
        assert is_equal(loaded, list(output(1).values()))
        eventually(shared.num_leases, lambda leases: leases == 0, "the lease to be back, with no further call")


def test_leases_of_copies_that_have_ended_are_given_back_by_whoever_asks(shared: Shared) -> None:
    copies = HeldCopies()
    with loader_of(copies) as loader:
        for number in range(3):
            loader.load(list(shared.view(f"k{number}", output(number)).values()))
        for copy in copies.begun[:2]:
            copy.end()
        loader.release()
        assert shared.num_leases() == 1
        copies.begun[2].end()


def test_a_lease_comes_back_while_another_call_asks_for_its_copy(
    shared: Shared, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The copy ends between the question and its answer; who waits for it finds it all the same."""
    copies = HeldCopies()
    with loader_of(copies) as loader:
        loader.load(list(shared.view("k", output(1)).values()))
        (copy,) = copies.begun
        asked = list[int]()

        def query() -> bool:
            asked.append(shared.num_leases())
            copy.end()
            eventually(shared.num_leases, lambda leases: leases == 0, "the lease to be back, with no further call")
            return False

        monkeypatch.setattr(copy, "query", query)
        loader.release()
        assert (asked, shared.num_leases()) == ([1], 0)


def test_what_is_under_way_at_the_end_keeps_its_lease(shared: Shared, monkeypatch: pytest.MonkeyPatch) -> None:
    copies, leases = HeldCopies(), list[int]()
    with loader_of(copies) as loader:
        for number in range(2):
            loader.load(list(shared.view(f"k{number}", output(number)).values()))
        first, second = copies.begun

        def synchronize() -> None:
            leases.append(shared.num_leases())
            second.end()

        monkeypatch.setattr(second, "synchronize", synchronize)
        threading.Timer(1 / 50, first.end).start()
    assert leases == [1]
    assert shared.num_leases() == 0


def test_the_end_waits_for_what_is_under_way(shared: Shared) -> None:
    copies, runtime = HeldCopies(), ListedRuntime()
    with loader_of(copies, runtime) as loader:
        views = list(shared.view("k", output(1)).values())
        for _ in range(2):
            loader.load(views)
            copies.begun[-1].end()
        eventually(lambda: loader.pinned_bytes, bool, "a piece to be pinned")
        for _ in range(2):
            loader.load(views)
        del views
        for turn, copy in enumerate(copies.begun[2:], 1):
            threading.Timer(turn / 50, copy.end).start()
    assert copies.begun[-1].query()
    assert (shared.num_leases(), runtime.pinned) == (0, {})
    loader.close()


# ---- what is pinned


def test_what_is_read_again_is_pinned_and_then_read_in_place(shared: Shared) -> None:
    copies, runtime = HeldCopies(ends_at_once=True), ListedRuntime()
    with loader_of(copies, runtime) as loader:
        views = list(shared.view("k", output(1, rows=1000)).values())  # 40 KB: three pieces
        expected = list(output(1, rows=1000).values())
        assert is_equal(loader.load(views), expected)
        assert runtime.asked == []
        assert is_equal(loader.load(views), expected)
        eventually(lambda: loader.pinned_bytes, lambda found: found == 3 * PIECE_BYTES, "three pieces")
        assert is_equal(loader.load(views), expected)
        assert [copy.are_pinned for copy in copies.begun] == [[False] * 3, [False] * 3, [True] * 3]
        assert runtime.asked == sorted(runtime.asked), "the lowest first"
        assert set(runtime.pinned.values()) == {PIECE_BYTES}
    assert runtime.pinned == {}


def test_the_last_piece_ends_with_the_records(shared: Shared) -> None:
    """What lies behind them has no memory yet, and would get some."""
    copies, runtime = HeldCopies(ends_at_once=True), ListedRuntime()
    with DeviceLoader("cpu", piece_bytes=2 * RING_BYTES, copies=copies, runtime=runtime) as loader:
        views = list(shared.view("k", output(1)).values())
        for _ in range(2):
            loader.load(views)
        eventually(lambda: loader.pinned_bytes, bool, "a piece")
        assert list(runtime.pinned.values()) == [RING_BYTES]


def test_no_more_is_pinned_than_may_be(shared: Shared) -> None:
    copies, runtime = HeldCopies(ends_at_once=True), ListedRuntime()
    with loader_of(copies, runtime, max_pinned_bytes=2 * PIECE_BYTES + 1) as loader:
        views = list(shared.view("k", output(1, rows=1000)).values())
        for _ in range(5):
            loader.load(views)
        eventually(lambda: loader.pinned_bytes, lambda found: found == 2 * PIECE_BYTES, "two pieces")
        assert is_equal(loader.load(views), list(output(1, rows=1000).values()))
        assert copies.begun[-1].are_pinned == [True, True, False]
        assert len(runtime.asked) == 2


@pytest.mark.parametrize(("taken", "error"), [(0, PageRefused), (1, PageRefused), (1, OSError)])
def test_a_device_that_refuses_is_asked_for_no_more(
    shared: Shared, taken: int, error: type[Exception], caplog: pytest.LogCaptureFixture
) -> None:
    copies, runtime = HeldCopies(ends_at_once=True), ListedRuntime(refuses_from=taken, error=error)
    with loader_of(copies, runtime) as loader:
        views = list(shared.view("k", output(1, rows=1000)).values())
        for _ in range(2):
            loader.load(views)
        eventually(lambda: len(runtime.asked), lambda asked: asked == taken + 1, "a refusal")
        eventually(lambda: caplog.text.count("no memory is pinned any more"), bool, "a word about it")
        for _ in range(2):
            assert is_equal(loader.load(views), list(output(1, rows=1000).values()))
        assert copies.begun[-1].are_pinned.count(True) == taken
        assert (len(runtime.asked), caplog.text.count("no memory is pinned any more")) == (taken + 1, 1)


def test_memory_is_unpinned_before_it_is_unmapped() -> None:
    """Which happens with the last view, in whatever thread; the stand-in reads it all when it unpins."""
    copies, runtime = HeldCopies(ends_at_once=True), ListedRuntime()
    with loader_of(copies, runtime) as loader:
        with make_ring(RING_BYTES) as ring, contextlib.ExitStack() as stack:
            shared = Shared(ring, stack)
            views = list(shared.view("k", output(1)).values())
            for _ in range(2):
                loader.load(views)
            eventually(lambda: loader.pinned_bytes, bool, "a piece")
        assert runtime.pinned
        del views, shared
        eventually(lambda: runtime.pinned, lambda pinned: not pinned, "nothing pinned")
        assert loader.pinned_bytes == 0


def test_of_two_loaders_each_unpins_what_it_has_pinned() -> None:
    """What stays pinned is read for whatever is mapped there next."""
    copies, runtime = HeldCopies(ends_at_once=True), ListedRuntime()
    with loader_of(copies, runtime) as loader, loader_of(copies, ListedRuntime(refuses_from=0)) as other:
        with make_ring(RING_BYTES) as ring, contextlib.ExitStack() as stack:
            shared = Shared(ring, stack)
            views = list(shared.view("k", output(1)).values())
            for each in (loader, loader, other):
                each.load(views)
            with loader_of(copies) as third:
                third.load(views)
            eventually(lambda: loader.pinned_bytes, bool, "a piece")
        del views, shared
        eventually(lambda: runtime.pinned, lambda pinned: not pinned, "nothing pinned")
        assert loader.pinned_bytes == 0


def test_nothing_is_locked_while_another_thread_is_given_work(shared: Shared) -> None:
    """That thread's queue has a lock, under which pages may be unmapped, which needs ours."""
    looks = list[threading.Thread]()

    def later(_: Callable[[], None]) -> None:
        looks.append(threading.Thread(target=lambda: pinned.nbytes, daemon=True))
        looks[0].start()
        looks[0].join(DEADLINE_S)
        assert not looks[0].is_alive()

    pinned = PinnedPages(ListedRuntime(), max_bytes=RING_BYTES, piece_bytes=PIECE_BYTES, later=later)
    for _ in range(2):
        list(pinned.parts_of(shared.pages, 0, 1))
    assert len(looks) == 1


def test_what_is_being_pinned_at_the_end_is_unpinned(shared: Shared) -> None:
    runtime, later = ListedRuntime(), list[Callable[[], None]]()
    pinned = PinnedPages(runtime, max_bytes=RING_BYTES, piece_bytes=PIECE_BYTES, later=later.append)
    for _ in range(2):
        assert [part.is_pinned for part in pinned.parts_of(shared.pages, 0, 1)] == [False]
    runtime.meanwhile = pinned.close
    (pin_next,) = later
    pin_next()
    assert (len(runtime.asked), runtime.pinned, pinned.nbytes) == (1, {}, 0)


# ---- what is copied plainly


def test_what_lies_elsewhere_or_is_not_dense_is_copied_all_the_same(shared: Shared) -> None:
    copies = HeldCopies(ends_at_once=True)
    with loader_of(copies) as loader:
        found = shared.view("k", output(1))
        wide = found["embeds"]
        mixed = [wide, wide.t(), torch.arange(5), torch.empty(0, 3), wide[5:9], wide[7:7], found["count"], wide[::2]]
        assert is_equal(loader.load(mixed), [each.clone() for each in mixed])
        assert len(copies.begun) == 1
        (z,) = shared.view("z", {"z": torch.tensor([1 + 2j, 3 - 4j])}).values()
        for each in (z.conj(), z[:1].conj().imag, wide[7:7]):
            assert torch.equal(loader.load([each])[0], each.clone())
        assert loader.load([]) == []


def test_tensors_that_lie_far_apart_are_copied_apart(shared: Shared) -> None:
    copies = HeldCopies(ends_at_once=True)
    with loader_of(copies) as loader:
        (x,) = shared.view("k", {"x": torch.arange(10 * MAX_GAP_BYTES, dtype=torch.uint8)}).values()
        parts = [x[:10], x[11:20], x[4999:5003], x[5008:5016].view(torch.int64), x[8:11], x]
        assert is_equal(loader.load(parts[:5]), [each.clone() for each in parts[:5]])
        assert [len(copy.target) for copy in copies.begun] == [20, 4, 8]
        assert is_equal(loader.load(parts), [each.clone() for each in parts])
        assert len(copies.begun[-1].target) == len(x)
