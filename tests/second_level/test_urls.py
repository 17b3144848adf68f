"""Which server a URL names; what is no such URL is refused without its password."""

from __future__ import annotations

import sys

import pytest

from mmcached.second_level.redis.place import RedisPlace, read_place
from mmcached.second_level.urls import check_installed, check_url, make_backend
from mmcached.wire.errors import ConfigError
from mmcached.wire.shown_url import shown_url

PLACES = {
    "redis://host": RedisPlace("one", (("host", 6379),)),
    "redis://host:7000/3": RedisPlace("one", (("host", 7000),), db=3),
    "redis://:p%40ss@[::1]:7000": RedisPlace("one", (("::1", 7000),), password="p@ss"),
    "redis://me:p%2Fw@host": RedisPlace("one", (("host", 6379),), username="me", password="p/w"),
    "redis://me:p@w@host": RedisPlace("one", (("host", 6379),), username="me", password="p@w"),
    "rediss://host": RedisPlace("one", (("host", 6379),), tls={"ssl_check_hostname": True}),
    "rediss://host?ssl_ca_certs=/ca.pem&ssl_check_hostname=0": RedisPlace(
        "one", (("host", 6379),), tls={"ssl_ca_certs": "/ca.pem", "ssl_check_hostname": False}
    ),
    "redis://host?cluster=1": RedisPlace("cluster", (("host", 6379),)),
    "unix:///run/redis.sock?db=2": RedisPlace("one", path="/run/redis.sock", db=2),
    "unix://me:pw@/run/a%20b": RedisPlace("one", path="/run/a b", username="me", password="pw"),
    "redis+sentinel://pw:x@a,b:7001/main/1?sentinel_password=s": RedisPlace(
        "sentinel",
        (("a", 26379), ("b", 7001)),
        service="main",
        db=1,
        username="pw",
        password="x",
        sentinel_password="s",
    ),
    "redis://me@host/1?namespace=blue.2": RedisPlace("one", (("host", 6379),), db=1, username="me", namespace="blue.2"),
    "redis://host?cluster=1&namespace=a-b_C": RedisPlace("cluster", (("host", 6379),), namespace="a-b_C"),
    "unix:///run/redis.sock?namespace=7": RedisPlace("one", path="/run/redis.sock", namespace="7"),
    "redis+sentinel://a/main?namespace=blue": RedisPlace("sentinel", (("a", 26379),), service="main", namespace="blue"),
    "rediss+sentinel://a/main": RedisPlace(
        "sentinel", (("a", 26379),), service="main", tls={"ssl_check_hostname": True}
    ),
}
REFUSED = (
    "",
    "localhost:6379",
    "http://host",
    "mmc:secret@host",
    "redis://",
    "redis:///1",
    "redis://:secret@",
    "redis://host:port",
    "redis://host:0",
    "redis://host:99999",
    "redis://host/one",
    "redis://host/1/2",
    "redis://host/-1",
    "redis://host?cluster=yes",
    "redis://host/1?cluster=1",
    "redis://host?db=1",
    "redis://host?socket_timeout=5",
    "redis://host?ssl_ca_certs=/ca.pem",
    "redis://host?cluster=1&cluster=1",
    "redis://host?cluster",
    "redis://host#secret",
    "redis://host?namespace=",
    "redis://host?namespace=sec:ret",
    "redis://host?namespace=.secret",
    "redis://host?namespace=" + 65 * "n",
    "redis://host?namespace=a&namespace=b",
    "mooncake://host?namespace=sec%2Fret",
    "redis://me:sec/ret@host",
    "redis://me:sec?ret=secret@host",
    "redis://me:sec#ret@host",
    "redis://a,b",
    "unix://run/redis.sock",
    "unix://",
    "unix:///",
    "unix:///s?cluster=1",
    "redis+sentinel://host",
    "redis+sentinel://host:26379/",
    "redis+sentinel://a,,b/main",
    "redis+sentinel://a/main?cluster=1",
    "mooncake://me:secret@host",
    "mooncake://host?db=1",
)


@pytest.mark.parametrize("url", PLACES)
def test_a_url_names_a_server(url: str) -> None:
    assert read_place(url) == PLACES[url]
    check_url(url)
    make_backend(url).close()  # nothing is opened


@pytest.mark.parametrize("url", REFUSED)
def test_what_names_no_server_is_refused_without_its_password(url: str) -> None:
    with pytest.raises(ConfigError) as refused:
        check_url(url)
    assert str(refused.value).startswith("store_l2 = ")
    assert "sec" not in str(refused.value)
    assert "ret" not in str(refused.value)
    with pytest.raises(ConfigError):
        make_backend(url)


@pytest.mark.parametrize(
    ("url", "shown"),
    [
        ("redis://host:1/2", "redis://host:1/2"),
        ("redis://me:secret@host", "redis://me:***@host"),
        ("redis://:secret@host", "redis://:***@host"),
        ("redis://secret@host", "redis://***@host"),
        ("redis://me:sec@r/e?t=1#@host/2", "redis://me:***@host/2"),
        ("redis://host?sentinel_password=secret&cluster=1", "redis://host?sentinel_password=***&cluster=1"),
        ("redis://host?sentinel%5fpassword=secret", "redis://host?sentinel%5fpassword=***"),
        ("me:secret@host", "***"),
        ("unix://me:secret@/run/s?db=1", "unix://me:***@/run/s?db=1"),
        ("mooncake://host?segment_mb=0&pass=secret", "mooncake://host?segment_mb=0&pass=***"),
    ],
)
def test_a_url_is_shown_without_what_is_secret(url: str, shown: str) -> None:
    assert shown_url(url) == shown


def test_a_place_is_shown_without_what_is_secret() -> None:
    assert "secret" not in repr(read_place("redis+sentinel://me:secret@host/main?sentinel_password=secret"))


def test_a_url_whose_product_is_not_installed_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    for url, module, extra in (
        ("redis://host", "mmcached.second_level.redis.backend", "redis"),
        ("mooncake://host", "mooncake.store", "mooncake"),
    ):
        check_url(url)
        monkeypatch.setitem(sys.modules, module, None)
        with pytest.raises(ConfigError, match=rf"store_l2.*pip install '\.\[{extra}\]'"):
            make_backend(url)


def test_what_is_not_installed_is_found_without_importing_it(monkeypatch: pytest.MonkeyPatch) -> None:
    check_installed("redis://host")
    monkeypatch.setattr("mmcached.second_level.urls.find_spec", lambda name: None)
    for url, extra in (("redis://me:secret@host", "redis"), ("mooncake://host", "mooncake")):
        with pytest.raises(ConfigError, match=rf"store_l2.*pip install '\.\[{extra}\]'") as refused:
            check_installed(url)
        assert "secret" not in str(refused.value)
