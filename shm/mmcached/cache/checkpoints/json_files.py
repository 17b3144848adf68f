"""Reads the small JSON files of a checkpoint's folder."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from mmcached.wire.errors import ConfigError


def json_of(file: Path, field: str) -> dict[str, Any]:
    """Return the object in a file; raises `ConfigError` with the setting `field` if there is none."""
    try:
        value = json.loads(file.read_bytes())
    except OSError as error:
        raise ConfigError(field, str(file), f"cannot be read: {error.strerror}") from error
    except (ValueError, RecursionError) as error:
        raise ConfigError(field, str(file), "is not JSON") from error
    if not isinstance(value, dict):
        raise ConfigError(field, str(file), "is not a JSON object")
    return value
