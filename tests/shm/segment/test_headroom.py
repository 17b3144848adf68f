from __future__ import annotations

from pathlib import Path

import pytest

from mmcached.shm.segment.headroom import memory_headroom, require_room
from mmcached.wire.errors import SegmentError


def write(root: Path, files: dict[str, str]) -> None:
    for name, text in files.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text)


def test_nothing_known_is_none(tmp_path: Path) -> None:
    assert memory_headroom(tmp_path) is None


def test_version_2_takes_the_tightest_of_a_group_and_its_parents(tmp_path: Path) -> None:
    write(
        tmp_path,
        {
            "proc/meminfo": "MemTotal: 9 kB\nMemAvailable:   1000000 kB\n",
            "proc/self/cgroup": "0::/outer/inner\n",
            "sys/fs/cgroup/outer/memory.max": "5000\n",
            "sys/fs/cgroup/outer/memory.current": "4500\n",
            "sys/fs/cgroup/outer/memory.stat": "anon 1\ninactive_file 300\n",
            "sys/fs/cgroup/outer/inner/memory.max": "max\n",
            "sys/fs/cgroup/outer/inner/memory.current": "4000\n",
        },
    )
    assert memory_headroom(tmp_path) == 5000 - 4500 + 300


def test_version_1_inside_a_container(tmp_path: Path) -> None:
    write(
        tmp_path,
        {
            "proc/self/cgroup": "5:cpu:/x\n4:memory:/docker/abc\n1:name=systemd:/\n",
            "sys/fs/cgroup/memory/memory.limit_in_bytes": "9000\n",
            "sys/fs/cgroup/memory/memory.usage_in_bytes": "1000\n",
            "sys/fs/cgroup/memory/memory.stat": "total_inactive_file 100\n",
        },
    )
    assert memory_headroom(tmp_path) == 8100


def test_a_path_above_the_mount_ends_at_the_mount(tmp_path: Path) -> None:
    write(
        tmp_path,
        {
            "proc/self/cgroup": "0::/../../elsewhere\n",
            "sys/fs/cgroup/memory.max": "100\n",
            "sys/fs/cgroup/memory.current": "400\n",
        },
    )
    assert memory_headroom(tmp_path) == 0


def test_the_host_counts_too(tmp_path: Path) -> None:
    write(tmp_path, {"proc/meminfo": "MemAvailable:   7 kB\n"})
    assert memory_headroom(tmp_path) == 7 * 1024


@pytest.mark.parametrize(
    ("shm_free", "headroom", "fact", "remedy"),
    [
        (9 << 20, 99 << 20, "/dev/shm has 9 MiB free", "remount"),
        (99 << 20, 9 << 20, "may take 9 MiB more memory", "memory.max"),
        (9 << 20, None, "/dev/shm has 9 MiB free", "--shm-size"),
    ],
)
def test_too_little_room_names_sizes_and_the_next_step(
    shm_free: int, headroom: int | None, fact: str, remedy: str
) -> None:
    with pytest.raises(SegmentError) as caught:
        require_room((10 << 20) - 1, shm_free_bytes=shm_free, headroom_bytes=headroom)
    text = str(caught.value)
    assert "needs 10 MiB" in text
    assert fact in text
    assert remedy in text
    assert caught.value.details == {"needed_bytes": (10 << 20) - 1, "free_bytes": 9 << 20}
