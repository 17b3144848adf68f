"""`mmcached config init`: writes a file with every setting, its default and description.

    # capacity for clients' records; 0: no store [GiB]
    #store_gb = 0.25

Every setting is commented out, so unchanged ones keep the default of the version that reads the file.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from operator import attrgetter
from pathlib import Path
from typing import Annotated, Literal, get_args, get_origin

import typer

from mmcached.cli.admin.printing import say
from mmcached.cli.config.fields import SETTINGS, Setting
from mmcached.cli.config.texts import INTERNAL, describe
from mmcached.cli.config.toml import toml_value
from mmcached.wire.config import ServiceConfig
from mmcached.wire.errors import ConfigError

_HEAD = """\
# Settings of mmcached: take the # away from a line to change it, then `mmcached serve --config FILE`.
# The environment (MMC_STORE_GB=2GiB) and flags (--store-gb 2GiB) override the file; sizes and durations may have a
# unit, as text: "2GiB", "500ms". `mmcached config show --origin --config FILE` prints the resulting settings.
# The most changed settings come first. The run directory is not a setting: --run-dir DIR, or MMC_RUN_DIR.
"""
_FIRST = (
    *("world_size", "device", "store_gb", "mm_processor_cache_gb", "store_l2", "keep_cache"),
    *("http_port", "http_host", "log_level", "log_format"),
)
"""Settings that most services change."""


def init(
    file: Annotated[Path, typer.Argument(help="Where to; - is the standard output.")] = Path("mmcached.toml"),
    force: Annotated[bool, typer.Option("--force", help="Overwrite an existing file.")] = False,
) -> None:
    """Write a file with every setting, commented out, with its default and its description."""
    text = "\n".join(_lines()) + "\n"
    if str(file) == "-":
        typer.echo(text, nl=False)
        return
    if file.suffix != ".toml":
        raise ConfigError("file", str(file), "must end in .toml")
    try:
        with file.open("w" if force else "x") as out:
            out.write(text)
    except FileExistsError:
        raise ConfigError("file", str(file), "exists already: --force overwrites it") from None
    except OSError as error:
        raise ConfigError("file", str(file), f"cannot be written: {error.strerror}") from error
    say(f"wrote {file}; mmcached serve --config {file}")


def _lines() -> Iterator[str]:
    yield _HEAD
    defaults = ServiceConfig()
    shown = [setting for path, setting in SETTINGS.items() if path not in INTERNAL]
    # TOML requires settings without a section first.
    rank = {path: place for place, path in enumerate(_FIRST)}
    shown.sort(key=lambda setting: ("." in setting.path, rank.get(setting.path, len(rank))))
    for section, members in itertools.groupby(shown, lambda setting: setting.path.rpartition(".")[0]):
        if section:
            yield f"\n[{section}]"
        for setting in members:
            yield from _entry(setting, attrgetter(setting.path)(defaults))


def _entry(setting: Setting, default: str | float | bool | None) -> Iterator[str]:
    name = setting.path.rpartition(".")[2]
    text = describe(setting.path)
    choices = [str(each) for each in get_args(setting.type)] if get_origin(setting.type) is Literal else []
    if not all(choice in text for choice in choices):
        text = f"{text}: {', '.join(choices)}"
    yield f"\n# {text}"
    yield f"#{name} = {toml_value(default)}" if default is not None else f"# {name} is not set by default"
