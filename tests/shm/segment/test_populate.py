from __future__ import annotations

import errno
import logging
import mmap
import os
import threading
from collections.abc import Iterator
from pathlib import Path

import posix_ipc
import pytest

from mmcached.shm.segment.populate import Advice, Populator
from tests.shm.processes import DEADLINE_S

PAGE = mmap.PAGESIZE
NUM_PAGES = 1024


@pytest.fixture
def mapping() -> Iterator[mmap.mmap]:
    """A shared-memory object without a name, with all its pages allocated and none of them touched."""
    name = f"/mmc.test.{os.getpid()}"
    fd: int = posix_ipc.SharedMemory(name, posix_ipc.O_CREX, mode=0o600).fd
    posix_ipc.unlink_shared_memory(name)
    os.posix_fallocate(fd, 0, NUM_PAGES * PAGE)
    mapped = mmap.mmap(fd, NUM_PAGES * PAGE)
    os.close(fd)
    with mapped:
        yield mapped


def num_faults() -> int:
    return int(Path("/proc/self/stat").read_text().rpartition(")")[2].split()[7])


def touch_all(mapping: mmap.mmap) -> int:
    """Write into each page; return how many page faults it took."""
    before = num_faults()
    for start in range(0, len(mapping), PAGE):
        mapping[start] = 1
    return num_faults() - before


def is_unknown_here() -> bool:
    probe = mmap.mmap(-1, PAGE)
    populator = Populator(probe, Advice.WRITE)
    known = populator.wait(DEADLINE_S)
    populator.close()
    return not known


needs_the_advice = pytest.mark.skipif("is_unknown_here()", reason="a kernel before 5.14")


@needs_the_advice
def test_a_populated_mapping_takes_no_faults_and_keeps_its_bytes(mapping: mmap.mmap) -> None:
    mapping[5 * PAGE] = 77
    populator = Populator(mapping, Advice.WRITE, step_bytes=64 * PAGE)
    assert populator.wait(DEADLINE_S)
    assert populator.populated_bytes == len(mapping)
    assert mapping[5 * PAGE] == 77
    assert mapping[6 * PAGE] == 0
    assert touch_all(mapping) < NUM_PAGES // 8
    populator.close()


def test_steps_cover_the_mapping_from_its_start_once(mapping: mmap.mmap) -> None:
    steps: list[tuple[int, int]] = []
    populator = Populator(
        mapping, Advice.WRITE, step_bytes=300 * PAGE, advise=lambda at, nbytes, _: steps.append((at, nbytes))
    )
    assert populator.wait(DEADLINE_S)
    first = steps[0][0]
    assert [(at - first, nbytes) for at, nbytes in steps] == [
        (0, 300 * PAGE),
        (300 * PAGE, 300 * PAGE),
        (600 * PAGE, 300 * PAGE),
        (900 * PAGE, 124 * PAGE),
    ]
    populator.close()


def test_close_ends_it_after_the_present_step(mapping: mmap.mmap) -> None:
    is_in_step, may_go_on = threading.Event(), threading.Event()

    def held_up(at: int, nbytes: int, advice: Advice) -> None:
        is_in_step.set()
        assert may_go_on.wait(DEADLINE_S)

    populator = Populator(mapping, Advice.WRITE, step_bytes=PAGE, advise=held_up)
    assert is_in_step.wait(DEADLINE_S)
    with pytest.raises(BufferError):  # the mapping cannot go while a step is in the kernel
        mapping.close()
    closing = threading.Thread(target=populator.close)
    closing.start()
    assert closing.is_alive()
    may_go_on.set()
    closing.join(DEADLINE_S)
    assert populator.populated_bytes == PAGE
    assert not populator.wait(0)
    populator.close()
    mapping.close()


@pytest.mark.parametrize("code", [errno.EINVAL, errno.ENOMEM, errno.EFAULT])
def test_a_kernel_that_refuses_is_no_error(mapping: mmap.mmap, code: int, caplog: pytest.LogCaptureFixture) -> None:
    calls: list[int] = []

    def refuse_the_second(at: int, nbytes: int, advice: Advice) -> None:
        calls.append(at)
        if len(calls) == 2:
            raise OSError(code, os.strerror(code))

    with caplog.at_level(logging.DEBUG):
        populator = Populator(mapping, Advice.WRITE, step_bytes=PAGE, advise=refuse_the_second)
        assert not populator.wait(DEADLINE_S)
    assert populator.populated_bytes == PAGE
    assert os.strerror(code) in caplog.text
    populator.close()


def test_an_interrupted_step_is_tried_again(mapping: mmap.mmap) -> None:
    errors = [errno.EINTR, errno.EAGAIN]

    def interrupted(at: int, nbytes: int, advice: Advice) -> None:
        if errors:
            raise OSError(errors.pop(), "")

    populator = Populator(mapping, Advice.WRITE, advise=interrupted)
    assert populator.wait(DEADLINE_S)
    populator.close()
