"""Completes the flags of settings in a shell, since typer does not know them.

`TAKES_SETTINGS` passes them to `load_config` unparsed, so they are in no command's list of parameters.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from typer.core import TyperCommand

from mmcached.cli.config.arguments import FLAGS
from mmcached.cli.config.texts import INTERNAL, describe


@dataclass(frozen=True, slots=True)
class _Flag:
    """One flag in the form that typer's completion expects; typer's own class differs between versions."""

    value: str
    help: str
    type: str = "plain"


class SettingsCommand(TyperCommand):
    def shell_complete(self, ctx: Any, incomplete: str) -> list[Any]:
        """Return the completions, with the flags of settings once a flag is begun."""
        known = super().shell_complete(ctx, incomplete)
        if not incomplete.startswith("-"):
            return known
        own = {item.value for item in known}
        flags = {name: flag.setting.path for name, flag in FLAGS.items() if name.startswith(incomplete)}
        return [
            *known,
            *(_Flag(name, describe(path)) for name, path in flags.items() if path not in INTERNAL and name not in own),
        ]
