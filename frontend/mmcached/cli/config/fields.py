"""The settings and the name of each in every layer, derived from the fields of `ServiceConfig`.

field                    command line                 environment                file
world_size               --world-size, --workers      MMC_WORLD_SIZE             world_size
enable_prefix_caching    --[no-]enable-prefix-…       MMC_ENABLE_PREFIX_CACHING  enable_prefix_caching
model.hidden_size        --model.hidden-size          MMC_MODEL__HIDDEN_SIZE     hidden_size in table [model]
_api_process_count       --api-process-count          MMC_API_PROCESS_COUNT      with or without the underscore
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

import msgspec

from mmcached.wire.config import ServiceConfig
from mmcached.wire.errors import ConfigError
from mmcached.wire.paths import RUN_DIR_VARIABLE
from mmcached.wire.process.death import PARENT_PID_VARIABLE

ENVIRONMENT_PREFIX = "MMC_"
DEFAULT = "default"
"""The origin of a value that no layer has set."""
ALIASES: Mapping[str, str] = MappingProxyType({"workers": "world_size"})
"""Other names of settings, in every layer."""

# These have the prefix of settings: the failpoint of a test, the parent of a child, and the run directory.
RESERVED_VARIABLES = frozenset({"MMC_CRASH_AT", PARENT_PID_VARIABLE, RUN_DIR_VARIABLE})


@dataclass(frozen=True, slots=True)
class Setting:
    """One field of the configuration, not a section; `path` as in `ConfigError`: `model.hidden_size`."""

    path: str
    type: Any

    @property
    def key(self) -> str:
        return self.path.removeprefix("_")

    @property
    def flag(self) -> str:
        return "--" + self.key.replace("_", "-")

    @property
    def negation(self) -> str | None:
        """The flag that sets false; None if the setting is not a bool."""
        return "--no-" + self.flag.removeprefix("--") if self.type is bool else None

    @property
    def variable(self) -> str:
        return ENVIRONMENT_PREFIX + self.key.replace(".", "__").upper()


def _settings_of(struct: type[msgspec.Struct], prefix: str = "") -> Iterator[Setting]:
    for field in msgspec.structs.fields(struct):
        if is_section(field.type):
            yield from _settings_of(field.type, f"{prefix}{field.name}.")
        else:
            yield Setting(prefix + field.name, field.type)


def is_section(field_type: Any) -> bool:
    return isinstance(field_type, type) and issubclass(field_type, msgspec.Struct)


SETTINGS: Mapping[str, Setting] = MappingProxyType({setting.path: setting for setting in _settings_of(ServiceConfig)})
SECTIONS = frozenset(path.rpartition(".")[0] for path in SETTINGS if "." in path)


def is_setting_variable(name: str) -> bool:
    """Return whether an environment variable is meant as a setting, even if misspelt."""
    return name.startswith(ENVIRONMENT_PREFIX) and name not in RESERVED_VARIABLES


def unknown_setting(name: str, value: str, layer: str, known: Iterable[str]) -> ConfigError:
    """Return the error for an unknown setting; it proposes the nearest known name."""
    by_folded = {spelling.casefold(): spelling for spelling in known}
    near = difflib.get_close_matches(name.casefold(), by_folded, n=1)
    advice = f"did you mean {by_folded[near[0]]}?" if near else "`mmcached config show` lists all settings"
    return ConfigError(name, value, f"unknown setting ({layer}); {advice}")
