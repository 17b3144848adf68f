"""The page of the protocol: its constants, layout and messages are those of the code."""

from __future__ import annotations

import re
from typing import Any

import pytest

from mmcached.shm.ring import lookup, slot_table
from mmcached.shm.segment import board, layout
from mmcached.shm.segment.layout import Layout
from mmcached.shm.store import record_head
from mmcached.wire import latency, version
from mmcached.wire.handle import Handle, RingAnnouncement
from mmcached.wire.messages import client, frontend
from mmcached.wire.sockets.zmtp import GREETING, handshake
from tests.house import REPOSITORY

PAGE = (REPOSITORY / "docs" / "protocol.md").read_text()
MODULES = (version, record_head, lookup, slot_table, board, latency, layout)
CONSTANTS = re.findall(r"^\| `([A-Z_0-9]+)` \| (\d+) \|", PAGE, re.MULTILINE)
MESSAGES = re.findall(r"^\| `([A-Z]\w+)` \| ([a-z_, ]+) \|$", PAGE, re.MULTILINE)


def constant(name: str) -> int:
    (found,) = {vars(module)[name] for module in MODULES if name in vars(module)}
    assert isinstance(found, int)
    return found


def test_the_constants_are_those_of_the_code() -> None:
    assert len(CONSTANTS) > 20
    assert {name: int(value) for name, value in CONSTANTS} == {name: constant(name) for name, _ in CONSTANTS}


@pytest.mark.parametrize(("name", "fields"), MESSAGES)
def test_a_message_has_the_fields_of_the_page(name: str, fields: str) -> None:
    message: Any = vars(frontend).get(name) or vars(client)[name]
    assert tuple(fields.split(", ")) == message.__struct_fields__


def test_the_page_lists_what_a_reader_sends_and_hears() -> None:
    assert {"ClientHello", "Welcome", "RegisterReader", "ReaderRegistered"} <= {name for name, _ in MESSAGES}
    for struct in (RingAnnouncement, Handle):
        fields = ", ".join(struct.__struct_fields__)
        assert fields in re.sub(r"\s+", " ", PAGE.replace("`", "")), fields


def test_the_offsets_of_the_page_are_those_of_the_layout() -> None:
    words = {"data_bytes": 1 << 20, "num_slots": 4096, "max_readers": 8, "index_words": 1 << 13}
    names: dict[str, Any] = {**words, "up": lambda x: -(-x // 4096) * 4096}
    for name, formula in re.findall(r"^    ([a-z_]+) +(?:file +)?= (.+?)(?: {3,}.*)?$", PAGE, re.MULTILINE):
        if name not in ("name", "digest"):
            names[name] = eval(formula, {}, names)
    expected = Layout(**words)
    assert (names["entry_bytes"], names["ctl"]) == (expected.entry_bytes, expected.ctl_bytes)
    assert (names["board"], names["slots"], names["index"]) == (
        expected.board_offset,
        expected.slots_offset,
        expected.index_offset,
    )
    assert names["data"] == expected.data_object_bytes


def test_the_header_has_the_bytes_of_the_page() -> None:
    names = ("ring id", "epoch", "boot id", "data_bytes", "num_slots", "offset of entry 0", "index_words", "crc32")
    rows = re.findall(r"^\| (\d+)(?:, (\d+))? \| (.+) \|$", PAGE, re.MULTILINE)
    offsets = {name: int(first) for name in names for first, _, text in reversed(rows) if text.startswith(name)}
    body = layout._BODY.format
    kinds = re.findall(r"\d*s|[IQ]", body)
    at, found = 8, []
    for kind in kinds:
        found.append(at)
        at += 16 if kind.endswith("s") else {"I": 4, "Q": 8}[kind]
    assert offsets == dict(
        zip(names, (found[2], found[3], found[6], found[7], found[8], found[10], found[14], at), strict=True)
    )


def test_the_handshake_is_that_of_the_page() -> None:
    ready = handshake(b"DEALER").removeprefix(GREETING)
    (text,) = re.findall(r"client +(04 29 05 .+)", PAGE)
    parts = (part for part in re.findall(r'"[^"]+"|[0-9A-F]+', text))
    assert b"".join(part.strip('"').encode() if part[0] == '"' else bytes.fromhex(part) for part in parts) == ready
