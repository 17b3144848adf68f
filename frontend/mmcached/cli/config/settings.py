"""Merges the four layers of a service's configuration; each layer overrides those below.

    command line    --world-size 4                     `mmcached.cli.config.arguments`
    environment     MMC_WORLD_SIZE=4
    file            world_size = 4                     TOML; or the JSON that `ServiceConfig.save` writes
    defaults        world_size: int = 2                `ServiceConfig`

    layers --> {path: (value, origin)} --> units --> types --> ServiceConfig, which checks the ranges

A value of a higher layer hides a lower one for the same field, even an invalid one; an unknown name is an error in
every layer. Roles read only the resulting `config.json`.
"""

from __future__ import annotations

import reprlib
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, get_args, get_origin

import msgspec

from mmcached.cli.config.arguments import LAYER as COMMAND_LINE
from mmcached.cli.config.arguments import parse_arguments
from mmcached.cli.config.fields import (
    ALIASES,
    DEFAULT,
    ENVIRONMENT_PREFIX,
    SECTIONS,
    SETTINGS,
    Setting,
    is_setting_variable,
    unknown_setting,
)
from mmcached.cli.config.units import in_unit_of, unit_of
from mmcached.wire.config import ServiceConfig
from mmcached.wire.errors import ConfigError
from mmcached.wire.version import VERSION_FIELD


@dataclass(frozen=True, slots=True)
class LoadedConfig:
    """A configuration, and the origin of each value.

    Attributes:
        origins: By dotted path of every field: "default", "file F", "environment MMC_X" or "command line --x".
    """

    config: ServiceConfig
    origins: dict[str, str]


@dataclass(frozen=True, slots=True)
class Given:
    """A value as a layer has it, and the layer's name for it."""

    value: object
    origin: str


def load_config(
    *, file: Path | None, environment: Mapping[str, str], arguments: Sequence[str], other_flags: Sequence[str] = ()
) -> LoadedConfig:
    """Read all layers and merge them into a configuration.

    Args:
        file: TOML or JSON, told apart by suffix.
        environment: All variables; those without the prefix MMC_ are ignored.
        other_flags: The command's own flags, proposed for a misspelt one.

    Raises:
        ConfigError: An unknown name, or a value of the wrong unit, type or range, with field, value, limit and layer;
            or the file cannot be read.
    """
    # A later operand of | overrides an earlier one: this line is the precedence.
    given = _file_layer(file) | _environment_layer(environment) | _command_line_layer(arguments, other_flags)
    origins = {path: given[path].origin if path in given else DEFAULT for path in SETTINGS}
    nested: dict[str, Any] = {}
    for path, item in given.items():
        *sections, name = path.split(".")
        fields = nested
        for section in sections:
            fields = fields.setdefault(section, {})
        fields[name] = _converted(SETTINGS[path], item)
    try:
        config = ServiceConfig.from_fields(nested)
    except ConfigError as error:
        origin = origins.get(str(error.details["field"]), DEFAULT)
        raise _config_error(error.details["field"], error.details["value"], error.details["limit"], origin) from error
    return LoadedConfig(config, origins)


def _command_line_layer(arguments: Sequence[str], other_flags: Sequence[str]) -> dict[str, Given]:
    found = parse_arguments(arguments, other_flags)
    return {path: Given(text, f"{COMMAND_LINE} {flag}") for path, (text, flag) in found.items()}


def _environment_layer(environment: Mapping[str, str]) -> dict[str, Given]:
    ours = {name: text for name, text in environment.items() if is_setting_variable(name)}
    by_variable = {setting.variable: setting for setting in SETTINGS.values()}
    for alias, path in ALIASES.items():
        name = f"{ENVIRONMENT_PREFIX}{alias.upper()}"
        if name in ours:
            text = ours.pop(name)
            if ours.setdefault(SETTINGS[path].variable, text) != text:
                raise _config_error(path, text, f"set by both {name} and {SETTINGS[path].variable}", "environment")
    for name, text in ours.items():
        if name not in by_variable:
            raise unknown_setting(name, text, "environment", by_variable)
    return {by_variable[name].path: Given(text, f"environment {name}") for name, text in ours.items()}


def _file_layer(file: Path | None) -> dict[str, Given]:
    """Read a file's settings; ConfigError for an unknown name, a value in place of a section, or a repeated setting."""
    if file is None:
        return {}
    origin = f"file {file}"
    by_key = {setting.key: setting for setting in SETTINGS.values()}
    found: dict[str, Given] = {}
    for name, value in _leaves(_content(file), ""):
        if name in SECTIONS:
            members = ", ".join(path for path in SETTINGS if path.startswith(f"{name}."))
            raise _config_error(name, value, f"is a section; set {members}", origin)
        setting = SETTINGS.get(ALIASES.get(name, name)) or by_key.get(name)
        if setting is None:
            raise unknown_setting(name, _shown(value), origin, by_key)
        if setting.path in found:
            raise _config_error(name, value, f"set twice, also as {setting.path}", origin)
        found[setting.path] = Given(value, origin)
    return found


def _content(file: Path) -> dict[str, Any]:
    if file.suffix not in (".toml", ".json"):
        raise ConfigError("config", str(file), "must end in .toml or .json")
    try:
        content = file.read_bytes()
        if file.suffix == ".toml":
            return tomllib.loads(content.decode())
        fields = msgspec.json.decode(content, type=dict[str, Any])
    except OSError as error:
        raise ConfigError("config", str(file), f"cannot be read: {error.strerror}") from error
    except (ValueError, RecursionError) as error:
        raise ConfigError("config", str(file), f"cannot be parsed: {error}") from error
    fields.pop(VERSION_FIELD, None)  # a run directory's config.json is accepted as a file of settings
    return fields


def _leaves(nested: Mapping[str, Any], prefix: str) -> Iterator[tuple[str, Any]]:
    for name, value in nested.items():
        if prefix + name in SECTIONS and isinstance(value, dict):
            yield from _leaves(value, f"{prefix}{name}.")
        else:
            yield prefix + name, value


def _converted(setting: Setting, given: Given) -> object:
    """Return the value in the field's unit and type; text is parsed for numbers and bools."""
    value, origin = given.value, given.origin
    try:
        if isinstance(value, str):
            value.encode()  # an environment variable may be invalid UTF-8, which config.json cannot hold
        return msgspec.convert(in_unit_of(setting.path, value), setting.type, strict=False)
    except ConfigError as error:
        raise _config_error(setting.path, value, error.details["limit"], origin) from error
    except (msgspec.ValidationError, UnicodeEncodeError) as error:
        raise _config_error(setting.path, value, _limit(setting), origin) from error


def _limit(setting: Setting) -> str:
    if get_origin(setting.type) is Literal:
        return f"must be one of {', '.join(map(str, get_args(setting.type)))}"
    must_be = {
        int: "a whole number",
        int | None: "a whole number",
        float: "a number",
        bool: "true or false",
        str: "text in UTF-8",
    }
    kind = must_be.get(setting.type, str(setting.type))
    unit = unit_of(setting.path)
    return f"must be {kind} of {unit.name}, or like {unit.example}" if unit else f"must be {kind}"


def _config_error(field: object, value: object, limit: object, origin: str) -> ConfigError:
    return ConfigError(str(field), value if isinstance(value, int | float) else _shown(value), f"{limit} ({origin})")


def _shown(value: object) -> str:
    """Return a value as text, of nested values only the outer levels: a file may nest them a thousandfold."""
    return reprlib.repr(value) if isinstance(value, dict | list) else str(value)
