"""What the page of several hosts says of URLs and of an ACL user is so."""

from __future__ import annotations

import re

import pytest
from redis.exceptions import NoPermissionError

from mmcached.second_level.records import Found
from mmcached.second_level.urls import check_url
from tests.house import REPOSITORY
from tests.second_level.conftest import MakeRecords, in_time
from tests.second_level.servers import Server

PAGE = (REPOSITORY / "docs" / "fleet.md").read_text()
URLS = re.findall(r"^\| `(\S+://\S+)`", PAGE, re.MULTILINE)
NAME = "ab" * 32


@pytest.mark.parametrize("url", URLS)
def test_each_url_is_one(url: str) -> None:
    check_url(url)


def test_the_page_has_all_kinds_of_urls() -> None:
    assert {url.partition(":")[0] for url in URLS} == {"redis", "rediss", "unix", "redis+sentinel", "mooncake"}
    assert any("cluster=1" in url for url in URLS)


def test_the_acl_user_may_do_what_is_needed_and_no_more(server: Server, make_records: MakeRecords) -> None:
    (rule,) = re.findall(r"^(ACL SETUSER .+)$", PAGE, re.MULTILINE)
    with server.client() as admin:
        admin.execute_command(*rule.split())
    records = make_records(server.url.replace("unix://", "unix://mmcached:PASSWORD@") + "?db=1")
    assert records.claim(NAME, ttl_s=5.0, deadline=in_time())
    assert records.save(NAME, [b"record"], deadline=in_time()) == "kept"
    records.drop_claim(NAME, deadline=in_time())
    (found,) = records.get_many([NAME], deadline=in_time())
    assert isinstance(found, Found)
    records.drop(NAME, deadline=in_time())
    assert records.take_drops(deadline=in_time()) == ([], False)
    records.flush(deadline=in_time())
    with server.client() as client:
        client.execute_command("AUTH", "mmcached", "PASSWORD")
        for command in ("FLUSHALL", "KEYS *", "GET other"):
            with pytest.raises(NoPermissionError):
                client.execute_command(*command.split())
