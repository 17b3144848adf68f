"""Rows on their way into arenas, case by case: what is copied when, who waits for what, what must not come late."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import pytest
import torch

from mmcached.worker.hidden_states import KeySpec, RowChunk, RowSpan, TensorPrefixStore
from tests.worker.hidden_states.by_content.cases import BLOCK, CODES, HIDDEN, chunk_of, hidden, hidden_of, missing
from tests.worker.hidden_states.by_content.cases import names_of as names
from tests.worker.hidden_states.by_content.delayed_transfer import DelayedCopy, DelayedTransfer
from tests.worker.integrity import check_prefix_store

ROW = HIDDEN.row_nbytes
LARGE = 1 << 20


class Bench:
    """A store whose copies are done when the test says so, or when somebody waits."""

    def __init__(self, *specs: KeySpec, num_blocks: int = 100, staged_byte_limit: int = LARGE) -> None:
        self.transfer = DelayedTransfer()
        self.store = TensorPrefixStore(
            BLOCK,
            specs,
            byte_budget=num_blocks * BLOCK * sum(spec.row_nbytes for spec in specs),
            staged_byte_limit=staged_byte_limit,
            transfer_for=lambda device, keep_nbytes: self.transfer,
        )

    def write(self, *chunks: RowChunk, base: float = 0, **outputs: torch.Tensor) -> dict[bytes, dict[str, int]]:
        """Write rows that hold their position, and overwrite what was handed in."""
        rows = torch.cat([hidden_of(chunk, base) for chunk in chunks])
        assert self.store.write(chunks, {"hidden_states": rows, **outputs}) == []
        rows.fill_(-1)
        report = self.store.commit()
        check_prefix_store(self.store)
        return report

    @property
    def waits(self) -> tuple[int, int]:
        stats = self.store.stats()
        return stats.read_waits, stats.limit_waits


# ---- copies


def test_a_step_is_one_copy_of_all_keys_and_nobody_waits_for_it() -> None:
    bench = Bench(HIDDEN, CODES)
    codes = torch.arange(32).reshape(8, 2, 2)
    report = bench.write(chunk_of(0, "abcdefgh"), codes=codes)
    assert report == {name: {"hidden_states": 4, "codes": 4} for name in names("abcdefgh")}
    bench.store.release([0])
    assert (bench.transfer.num_started, bench.waits) == (1, (0, 0))
    assert bench.store.stats().in_flight_nbytes == 8 * (HIDDEN.row_nbytes + CODES.row_nbytes)
    bench.store.attach(1, names("abcdefgh"))
    with bench.store.read([RowSpan(1, 0, 8)], ["hidden_states", "codes"]) as rows:
        assert rows.get("hidden_states", 0)[:, 0].tolist() == list(range(8))
        assert torch.equal(rows.get("codes", 0), codes)
    assert bench.waits == (1, 0)
    assert bench.store.stats().in_flight_nbytes == 0


def test_a_reader_waits_for_the_copies_that_it_needs_and_for_no_others() -> None:
    bench = Bench(HIDDEN)
    for number, tokens in enumerate(("abcd", "efgh", "ijkl")):
        bench.write(chunk_of(number, tokens), base=10 * number)
    assert hidden(bench.store, 1, 0, 4) == [10, 11, 12, 13]
    assert (len(bench.transfer.open_copies), bench.waits) == (2, (1, 0))
    assert missing(bench.store, 1, 4, 9) == (4, 9)
    assert bench.waits == (1, 0)
    with bench.store.read([RowSpan(0, 0, 4), RowSpan(2, 1, 3), RowSpan(0, 0, 1)], ["hidden_states"]) as rows:
        assert [part[:, 0].tolist() for part in rows.all("hidden_states") if part is not None] == [
            [0, 1, 2, 3],
            [21, 22],
            [0],
        ]
    assert (len(bench.transfer.open_copies), bench.waits) == (0, (3, 0))


def test_beyond_the_limit_a_write_waits_for_the_oldest() -> None:
    step = 4 * ROW + 16
    bench = Bench(HIDDEN, staged_byte_limit=2 * step)
    for number, tokens in enumerate(("abcd", "efgh", "ijkl", "mnop")):
        bench.write(chunk_of(number, tokens), base=10 * number)
    assert (len(bench.transfer.open_copies), bench.waits) == (2, (0, 2))
    bench.write(chunk_of(4, "qrstuvwxyz123456"), base=40)  # more than the limit by itself
    assert (len(bench.transfer.open_copies), bench.waits) == (1, (0, 4))
    for number in range(5):
        assert hidden(bench.store, number, 0, 4) == [10 * number + at for at in range(4)]


def test_a_write_that_fails_has_written_nothing_and_the_next_one_works(monkeypatch: pytest.MonkeyPatch) -> None:
    bench = Bench(HIDDEN)

    def full(tensors: Sequence[torch.Tensor]) -> DelayedCopy:
        raise torch.OutOfMemoryError("no room on the device")

    chunk = chunk_of(0, "abcd")
    with monkeypatch.context() as patch:
        patch.setattr(bench.transfer, "start", full)
        with pytest.raises(torch.OutOfMemoryError):
            bench.store.write([chunk], {"hidden_states": hidden_of(chunk)})
    assert missing(bench.store, 0, 0, 4) == (0, 4)
    bench.store.withdraw()
    assert bench.store.commit() == {names("abcd")[0]: {}}
    bench.write(chunk)
    assert hidden(bench.store, 0, 0, 4) == [0, 1, 2, 3]


# ---- copies that fail


def broken(*_: object) -> object:
    raise RuntimeError("device")


@pytest.mark.parametrize(
    ("asks", "fails"),
    [
        *(("poll", "is_done"), ("poll", "rows")),
        *(("read", "is_done"), ("read", "wait"), ("read", "rows")),
        *(("limit", "is_done"), ("limit", "wait"), ("limit", "rows")),
    ],
)
def test_a_copy_that_fails_loses_its_rows_and_stops_nothing(
    asks: str, fails: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    bench = Bench(HIDDEN, staged_byte_limit=8 * ROW + 16 if asks == "limit" else LARGE)
    bench.write(chunk_of(0, "abcd"))
    bench.write(chunk_of(1, "efgh"))
    first = bench.transfer.open_copies[0]
    if asks == "poll":
        bench.transfer.let_arrive()
    ask: dict[str, Callable[[], object]] = {
        "poll": bench.store.commit,
        "read": lambda: hidden(bench.store, 0, 0, 4),
        "limit": lambda: bench.write(chunk_of(2, "ij")),
    }
    monkeypatch.setattr(first, fails, broken)
    with pytest.raises(RuntimeError, match="device"):
        ask[asks]()
    bench.store.withdraw()
    assert missing(bench.store, 0, 0, 4) == (0, 4)
    assert hidden(bench.store, 1, 0, 4) == [0, 1, 2, 3]
    assert bench.store.commit() == {names("abcd")[0]: {}}
    bench.write(chunk_of(0, "abcd"))
    assert hidden(bench.store, 0, 0, 4) == [0, 1, 2, 3]
    assert bench.store.stats().in_flight_nbytes == 0


def test_after_a_reset_a_dead_device_is_not_heard_of_again(monkeypatch: pytest.MonkeyPatch) -> None:
    bench = Bench(HIDDEN)
    for request_id, tokens in enumerate(("abcd", "efgh", "ijkl")):
        bench.write(chunk_of(request_id, tokens))
    for copy in bench.transfer.open_copies:
        monkeypatch.setattr(copy, "is_done", broken)
    bench.store.reset()
    assert bench.store.commit() == {}
    assert bench.store.stats().in_flight_nbytes == 0
    bench.write(chunk_of(5, "abcd"))
    assert hidden(bench.store, 5, 0, 4) == [0, 1, 2, 3]
