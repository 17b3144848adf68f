"""`mmcached config show`: prints the settings of a service, and the origin of each.

Without `--json` the output is TOML, which `--config` accepts.
"""

from __future__ import annotations

import os
from operator import attrgetter
from pathlib import Path
from typing import Annotated, Any

import msgspec
import typer

from mmcached.cli.admin.printing import RunDirOption, directory_of, no_service, print_json
from mmcached.cli.config.completion import SettingsCommand
from mmcached.cli.config.fields import DEFAULT, SETTINGS
from mmcached.cli.config.init import init
from mmcached.cli.config.settings import LoadedConfig, load_config
from mmcached.cli.config.texts import INTERNAL, describe
from mmcached.cli.config.toml import toml_value
from mmcached.cli.terminal_text import shown
from mmcached.wire.config import ServiceConfig
from mmcached.wire.errors import ConfigError

# Every field is a flag: flags unknown to the command are passed to `load_config`.
TAKES_SETTINGS = {"allow_extra_args": True, "ignore_unknown_options": True}

ConfigOption = Annotated[
    Path | None, typer.Option("--config", help="TOML file with settings, or a JSON file that a service wrote.")
]


def register(app: typer.Typer) -> None:
    config = typer.Typer(help="Look at the configuration, or begin one.", no_args_is_help=True)
    config.command(cls=SettingsCommand, context_settings=TAKES_SETTINGS)(show)
    config.command()(init)
    app.add_typer(config, name="config")


def show(
    context: typer.Context,
    *,
    config: ConfigOption = None,
    origin: Annotated[bool, typer.Option("--origin", help="Say which layer has set each value.")] = False,
    everything: Annotated[bool, typer.Option("--all", help="Also the settings for our own tests.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON instead of TOML.")] = False,
    live: Annotated[bool, typer.Option("--live", help="The settings of the service that runs in --run-dir.")] = False,
    run_dir: RunDirOption = None,
) -> None:
    """Print every setting. The values are those of a service started with the same flags, environment and file.

    URLs are printed without their passwords. Every setting is a flag here, as it is for `serve`; not with --live.
    """
    if live:
        if config is not None or context.args:
            raise ConfigError("--live", " ".join(context.args) if config is None else str(config), "takes no settings")
        loaded = _live(directory_of(run_dir))
    elif run_dir is not None:
        raise ConfigError("--run-dir", str(run_dir), "is for --live: the service whose settings are shown")
    else:
        loaded = load(context, config)
    if as_json:
        plain = msgspec.to_builtins(loaded.config.shown())
        print_json({"config": plain, "origins": loaded.origins} if origin else plain)
    else:
        typer.echo("\n".join(_toml_lines(loaded, with_origin=origin, everything=everything)))


def _live(run_dir: Path) -> LoadedConfig:
    """Return the settings of the running service, without their origins; typer.Exit if none runs."""
    from mmcached.cli.admin.observe import saved_config
    from mmcached.cli.serve.seat import supervisor_pid

    if supervisor_pid(run_dir) is None:
        raise no_service(run_dir)
    config, defaults = saved_config(run_dir), ServiceConfig()
    origins = {
        path: DEFAULT if attrgetter(path)(config) == attrgetter(path)(defaults) else "set at its start"
        for path in SETTINGS
    }
    return LoadedConfig(config, origins)


def load(context: typer.Context, file: Path | None, more: tuple[str, ...] = ()) -> LoadedConfig:
    """Read the configuration for a command whose context has `TAKES_SETTINGS`; `more` precedes its arguments."""
    own_flags = [flag for parameter in context.command.params for flag in parameter.opts]
    return load_config(file=file, environment=os.environ, arguments=[*more, *context.args], other_flags=own_flags)


def _toml_lines(loaded: LoadedConfig, *, with_origin: bool, everything: bool) -> list[str]:
    # Changed internal settings are shown too, so that the output gives the same configuration.
    paths = [path for path in SETTINGS if everything or path not in INTERNAL or loaded.origins[path] != DEFAULT]
    lines = {path: _line(path, attrgetter(path)(loaded.config.shown())) for path in paths}
    width = max(map(len, lines.values()))
    said = {path: loaded.origins[path] if with_origin else describe(path) for path in paths}
    return [f"{line:{width}}  # {shown(said[path])}" for path, line in lines.items()]


def _line(path: str, value: Any) -> str:
    # TOML has no null.
    return f"# {path} = not set" if value is None else f"{path} = {toml_value(value)}"
