from __future__ import annotations

import errno
import mmap
import os
import secrets
import struct
import subprocess
import sys
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import msgspec
import posix_ipc
import pytest

from mmcached.shm import HostCalls, ReaderEntry, RingReader, RingWriter
from mmcached.shm.files import locks
from mmcached.shm.segment import mapped, populate, segment
from mmcached.shm.segment.layout import LAYOUT_VERSION, PAGE_BYTES, Layout
from mmcached.shm.segment.mapped import open_control
from mmcached.shm.segment.pages import Pages
from mmcached.shm.segment.segment import WriterSegment
from mmcached.shm.segment.sweep import sweep
from mmcached.wire.errors import LayoutMismatch, SegmentError
from mmcached.wire.handle import RingAnnouncement
from tests.house.isolation import private_shm
from tests.shm.processes import DEADLINE_S
from tests.shm.rings import make_ring

MIB = 1 << 20


def no_space(fd: int, offset: int, size: int) -> None:
    raise OSError(errno.ENOSPC, "No space left on device")


def exists(name: str) -> bool:
    return (mapped.SHM_DIR / name.lstrip("/")).exists()


def test_both_objects_are_private_allocated_and_gone_after_close() -> None:
    with make_ring(1 << 20) as ring:
        names = ring.announcement
        layout = mapped.layout_of(names)
        allocated = {names.data_name: layout.data_object_bytes, names.ctl_name: PAGE_BYTES}
        for name, num_bytes in allocated.items():
            status = (mapped.SHM_DIR / name[1:]).stat()
            assert status.st_mode & 0o777 == 0o600
            assert num_bytes <= status.st_blocks * 512 < num_bytes + layout.entry_bytes
        assert names.epoch > 0
    assert not exists(names.data_name)
    assert not exists(names.ctl_name)
    ring.close()


@pytest.mark.parametrize(
    "host",
    [
        HostCalls(shm_free_bytes=lambda: 30 * MIB),
        HostCalls(headroom_bytes=lambda: 30 * MIB),
        HostCalls(fallocate=no_space),
    ],
    ids=["statvfs", "memory limit", "fallocate"],
)
def test_no_room_says_how_much_and_what_to_do(host: HostCalls) -> None:
    with pytest.raises(SegmentError, match="lower store_gb") as caught:
        RingWriter.create(data_bytes=64 * MIB, max_object_bytes=MIB, host=host)
    remedy = "--memory=" if host.headroom_bytes() == 30 * MIB else "--shm-size="
    assert remedy in str(caught.value)
    needed = caught.value.details["needed_bytes"]
    assert isinstance(needed, int)
    assert needed > 64 * MIB  # what it may have left behind, the leak gate sees


SMALL_TMPFS = """
import os
from mmcached.shm import HostCalls, RingWriter
from mmcached.wire.errors import SegmentError
# The checks before it are turned off: another process may have filled /dev/shm since they were made.
host = HostCalls(shm_free_bytes=lambda: 1 << 40, headroom_bytes=lambda: None)
try:
    RingWriter.create(data_bytes=64 << 20, max_object_bytes=1 << 20, host=host)
except SegmentError as error:
    print("refused", os.listdir("/dev/shm"))
with RingWriter.create(data_bytes=4 << 20, max_object_bytes=1 << 20, host=host) as ring:
    claim = ring.claim(1 << 20)
    claim.buffer[:] = 1
    ring.commit(claim)
    print("fits")
"""


def test_a_full_tmpfs_is_an_error_and_no_signal() -> None:
    mount = "mount -t tmpfs -o size=8m tmpfs /dev/shm"
    probe = subprocess.run(["unshare", "-m", "sh", "-c", mount], capture_output=True, timeout=DEADLINE_S, check=False)
    if probe.returncode:
        pytest.skip("needs the right to mount a private tmpfs")
    command = ["unshare", "-m", "sh", "-c", f'{mount} && exec "$0" -c "$1"', sys.executable, SMALL_TMPFS]
    child = subprocess.run(command, capture_output=True, text=True, timeout=DEADLINE_S, check=False)
    assert child.returncode == 0, child.stderr
    assert child.stdout.splitlines() == ["refused []", "fits"]


def overwrite(name: str, offset: int, data: bytes) -> None:
    fd = posix_ipc.SharedMemory(name).fd
    os.pwrite(fd, data, offset)
    os.close(fd)


@pytest.mark.parametrize("attach", [ReaderEntry.attach, RingReader.open], ids=["entry", "reader"])
def test_a_future_layout_is_refused(attach: Callable[..., Any]) -> None:
    with make_ring() as ring:
        overwrite(ring.announcement.ctl_name, 8, struct.pack("<I", LAYOUT_VERSION + 1))
        with pytest.raises(LayoutMismatch) as caught:
            attach(ring.announcement)
        assert caught.value.details["field"] == "layout_version"


@pytest.mark.parametrize("attach", [ReaderEntry.attach, RingReader.open], ids=["entry", "reader"])
def test_a_segment_without_its_magic_is_not_ready(attach: Callable[..., Any]) -> None:
    with make_ring() as ring:
        overwrite(ring.announcement.ctl_name, 0, bytes(8))
        with pytest.raises(LayoutMismatch):
            attach(ring.announcement)


@pytest.mark.parametrize("field", ["epoch", "data_bytes", "num_slots", "max_readers"])
def test_what_contradicts_the_announcement_is_refused(field: str) -> None:
    with make_ring() as ring:
        value = getattr(ring.announcement, field)
        announced = msgspec.structs.replace(ring.announcement, **{field: value * 2})
        with pytest.raises(LayoutMismatch):
            RingReader.open(announced)
        with pytest.raises(LayoutMismatch):
            ReaderEntry.attach(announced)


def test_a_data_object_of_another_size_is_refused() -> None:
    with make_ring() as ring:
        fd = posix_ipc.SharedMemory(ring.announcement.data_name).fd
        os.ftruncate(fd, os.fstat(fd).st_size + 4096)
        os.close(fd)
        with pytest.raises(LayoutMismatch):
            RingReader.open(ring.announcement)


def test_the_data_object_is_mapped_without_write_permission() -> None:
    with make_ring() as ring:
        mapping = mapped.open_data(ring.announcement)
        with pytest.raises(TypeError):
            mapping[0:1] = b"x"
        assert isinstance(mapping, mmap.mmap)
        mapping.close()


def test_a_sweep_between_creation_and_lock_makes_it_create_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """The other party unlinks what is not locked yet: the creator notices that the name is not its inode."""
    lock = locks.try_exclusive
    created: list[str] = []

    def sweep_first(fd: int, byte: int) -> bool:
        if not created:
            created.append("/" + os.path.basename(os.readlink(f"/proc/self/fd/{fd}")))
            monkeypatch.setattr(locks, "try_exclusive", lock)
            assert created[0] in sweep()
        return lock(fd, byte)

    monkeypatch.setattr(locks, "try_exclusive", sweep_first)
    with make_ring() as ring:
        assert created[0] != ring.announcement.ctl_name
        assert not exists(created[0])
        assert exists(ring.announcement.ctl_name)
        assert ring.announcement.ctl_name not in sweep()


def test_a_sweep_that_holds_the_byte_makes_it_create_again() -> None:
    uid = os.getuid()
    first, second = secrets.token_hex(16), secrets.token_hex(16)
    ids = iter([first, second])
    layout = Layout(1 << 16, 8, 1)
    held: list[int] = []

    def new_ring_id() -> str:
        return next(ids)

    create = posix_ipc.SharedMemory

    def created(name: str, *arguments: Any, **options: Any) -> Any:
        shared = create(name, *arguments, **options)
        if first in name:  # the sweep has opened and locked it in this instant
            held.append(posix_ipc_open(name))
            assert locks.try_exclusive(held[0], locks.WRITER_BYTE)
        return shared

    def posix_ipc_open(name: str) -> int:
        fd: int = create(name).fd
        return fd

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(posix_ipc, "SharedMemory", created)
        made = WriterSegment.create(layout, epoch=1, host=HostCalls(), new_ring_id=new_ring_id)
    try:
        assert made.announcement.ring_id == second
    finally:
        made.close()
        os.close(held[0])
        segment.unlink(f"/mmc.{uid}.{first}.ctl")


def create_named(ring_id: str, **options: Any) -> WriterSegment:
    return WriterSegment.create(
        Layout(1 << 16, 8, 1), epoch=1, host=HostCalls(), new_ring_id=lambda: ring_id, **options
    )


def test_a_second_writer_on_a_name_is_refused_and_the_first_goes_on() -> None:
    ring_id = secrets.token_hex(16)
    first = create_named(ring_id)
    try:
        with pytest.raises(SegmentError, match="stop that service"):
            create_named(ring_id)
        assert exists(first.announcement.ctl_name)
        assert exists(first.announcement.data_name)
        mapped.open_control(first.announcement).close()
        assert sweep() == []
    finally:
        first.close()
    create_named(ring_id).close()


@pytest.mark.parametrize("kind", ["ctl", "data"])
def test_the_name_of_a_dead_writer_is_refused_until_it_is_swept(kind: str) -> None:
    ring_id = secrets.token_hex(16)
    name = f"/mmc.{os.getuid()}.{ring_id}.{kind}"
    os.close(posix_ipc.SharedMemory(name, posix_ipc.O_CREX, mode=0o600).fd)
    with pytest.raises(SegmentError, match=r"dead.*mmcached shm gc") as caught:
        create_named(ring_id)
    assert caught.value.details["name"] == name
    assert exists(name)
    assert name in sweep()
    create_named(ring_id).close()


def test_a_directory_that_may_not_be_written_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(name: str, *arguments: Any, **options: Any) -> Any:
        raise posix_ipc.PermissionsError

    monkeypatch.setattr(posix_ipc, "SharedMemory", refuse)
    with pytest.raises(SegmentError, match="may not create"):
        create_named(secrets.token_hex(16))


def test_a_read_only_dev_shm_is_an_error() -> None:
    """In a mount namespace of a thread: neither the writer nor a reader of an announced ring gets anything else."""

    def told() -> list[str]:
        announced = RingAnnouncement(os.getuid(), secrets.token_hex(16), 1, 1 << 20, 16, 4, 0)
        found = []
        for attempt in (lambda: create_named(announced.ring_id), lambda: open_control(announced)):
            with pytest.raises(SegmentError) as caught:
                attempt()
            found.append(str(caught.value))
        return found

    with ThreadPoolExecutor(1) as thread:
        try:
            thread.submit(private_shm, is_read_only=True).result(DEADLINE_S)
        except OSError as error:
            pytest.skip(str(error))
        for_writer, for_reader = thread.submit(told).result(DEADLINE_S)
    assert for_writer.startswith("/dev/shm is read-only: mount -o remount,rw /dev/shm")
    assert for_reader.startswith("/dev/shm/mmc.")


def test_no_address_space_is_an_error_that_leaves_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    def fails_on_data(fd: int, length: int, **options: Any) -> Pages:
        if length > 1 << 16:
            raise OSError(errno.ENOMEM, "Cannot allocate memory")
        return Pages(fd, length, **options)

    monkeypatch.setattr(mapped, "Pages", fails_on_data)
    with pytest.raises(SegmentError, match="ulimit -v"):
        create_named(secrets.token_hex(16))


def test_creation_populates_in_the_background_and_close_ends_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """The thread is held up inside its first step: neither creation nor writing waits for it, and close ends it."""
    is_in_step, may_go_on = threading.Event(), threading.Event()
    steps: list[int] = []

    def held_up(address: int, nbytes: int, advice: populate.Advice) -> None:
        steps.append(nbytes)
        is_in_step.set()
        assert may_go_on.wait(DEADLINE_S)

    monkeypatch.setattr(
        populate.Populator.__init__, "__kwdefaults__", {"begin": 0, "step_bytes": 4096, "advise": held_up}
    )
    made = WriterSegment.create(Layout(1 << 16, 8, 1), epoch=1, host=HostCalls())
    assert is_in_step.wait(DEADLINE_S)
    assert made.populated_bytes == 0
    made.data[:8] = b"written!"
    threading.Timer(0.01, may_go_on.set).start()
    made.close()
    assert steps == [4096]
    assert made.populated_bytes == 4096


def test_creation_gives_up_with_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    def is_swept(name: str, fd: int) -> bool:
        segment.unlink(name)
        return False

    monkeypatch.setattr(segment, "is_name_of", is_swept)
    with pytest.raises(SegmentError, match="swept"):
        make_ring()
