"""What a URL of Mooncake says, and what it may not."""

from __future__ import annotations

import pytest

from mmcached.second_level.mooncake.place import MooncakePlace, read_place


def test_a_master_is_enough() -> None:
    assert read_place("mooncake://master") == MooncakePlace("master:50051", "", 512 << 20, 128 << 20)
    assert read_place("mooncake://10.0.0.1:7/").address == ("10.0.0.1", 7)


def test_all_that_can_be_said() -> None:
    url = "mooncake://m.example.org:1234?host=10.0.0.2&segment_mb=0&buffer_mb=64&namespace=blue"
    assert read_place(url) == MooncakePlace("m.example.org:1234", "10.0.0.2", 0, 64 << 20, "blue")


@pytest.mark.parametrize(
    ("url", "why"),
    [
        ("mooncake://", "must have a name or an IPv4 address as master"),
        ("mooncake://[::1]:50051", "must have a name or an IPv4 address as master"),
        ("mooncake://m:0", "must have a port between 1 and 65535"),
        ("mooncake://m:65536", "must have a port between 1 and 65535"),
        ("mooncake://m:", "must have a port between 1 and 65535"),
        ("mooncake://m:+1", "must have a port between 1 and 65535"),
        ("mooncake://me:secret@m", "must be mooncake://host:port, without a user and a path"),
        ("mooncake://m/0", "must be mooncake://host:port, without a user and a path"),
        ("mooncake://m#x", "must be mooncake://host:port, without a user and a path"),
        ("mooncake://m?segment_mb", "segment_mb must be between 0 and 1048576"),
        ("mooncake://m?host=a&", "must have each option once, as name=value"),
        ("mooncake://m?host=a&host=b", "must have each option once, as name=value"),
        ("mooncake://m?host=a b", "must have a name or an IPv4 address as host"),
        ("mooncake://m?segment_mb=-1", "segment_mb must be between 0 and 1048576"),
        ("mooncake://m?segment_mb=1e3", "segment_mb must be between 0 and 1048576"),
        ("mooncake://m?buffer_mb=63", "buffer_mb must be between 64 and 65536"),
        ("mooncake://m?segment_gb=1", "knows no option segment_gb with mooncake://"),
    ],
)
def test_what_means_nothing_is_refused(url: str, why: str) -> None:
    with pytest.raises(ValueError, match=why) as refused:
        read_place(url)
    assert "secret" not in str(refused.value)
