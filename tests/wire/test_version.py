"""Whoever changes a message raises the version, and another version is named as what it is."""

from __future__ import annotations

import hashlib
import importlib
import json
import re
from pathlib import Path
from typing import Any

import msgspec
import pytest

from mmcached.wire.config import ServiceConfig
from mmcached.wire.errors import ConfigError, RemoteProtocolError
from mmcached.wire.messages.frontend import FromClient, GetStats
from mmcached.wire.sockets.frames import decode_frames, encode_frames, make_decoder
from mmcached.wire.version import PROTOCOL_VERSION, VERSION_FIELD
from tests.house import REPOSITORY
from tests.wire.examples import UNIONS

SCHEMA = "28:11dc1b668aa18f35"
"""Of `PROTOCOL_VERSION`: after a change raise the version, then put here what the test found."""


def shape_of(kind: Any) -> Any:
    """Return what two sides must agree on of a type, without its text."""
    _, components = msgspec.json.schema_components([kind], ref_template="{name}")

    def without_text(node: Any) -> Any:
        if isinstance(node, dict):
            return {name: without_text(part) for name, part in node.items() if name not in ("description", "title")}
        return [without_text(part) for part in node] if isinstance(node, list) else node

    return without_text(components)


def test_a_changed_message_has_a_new_version() -> None:
    text = json.dumps({name: shape_of(kind) for name, kind in UNIONS.items()}, sort_keys=True)
    found = f"{PROTOCOL_VERSION}:{hashlib.sha256(text.encode()).hexdigest()[:16]}"
    assert found == SCHEMA, "messages have changed: raise wire.version.PROTOCOL_VERSION, then SCHEMA here"


@pytest.mark.parametrize("version", [PROTOCOL_VERSION - 1, PROTOCOL_VERSION + 1])
def test_a_message_of_another_version_says_to_upgrade(version: int) -> None:
    frames = [b"mmc" + bytes([version]), b"whatever they say then"]
    with pytest.raises(RemoteProtocolError, match="upgrade the older side"):
        decode_frames(frames, make_decoder(FromClient))
    assert decode_frames(encode_frames(GetStats(1)), make_decoder(FromClient))[0] == GetStats(1)


@pytest.mark.parametrize("version", [None, PROTOCOL_VERSION + 1])
def test_a_configuration_of_another_version_says_to_upgrade(tmp_path: Path, version: int | None) -> None:
    path = tmp_path / "config.json"
    ServiceConfig().save(path)
    fields = json.loads(path.read_text())
    assert fields.pop(VERSION_FIELD) == PROTOCOL_VERSION
    fields["a_field_of_theirs"] = 1
    path.write_text(json.dumps(fields if version is None else {VERSION_FIELD: version, **fields}))
    with pytest.raises(ConfigError, match="upgrade the older side"):
        ServiceConfig.load(path)


def test_the_page_of_versions_has_the_numbers() -> None:
    page = (REPOSITORY / "docs" / "versions.md").read_text()
    rows = re.findall(r"^\| [^|]+ \| (\d+) \| `([\w.]+)\.(\w+)` \|", page, re.MULTILINE)
    assert len(rows) == 4
    for number, module, name in rows:
        assert getattr(importlib.import_module(module), name) == int(number), f"docs/versions.md: {module}.{name}"
