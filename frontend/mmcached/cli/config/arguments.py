"""Parses the settings on a command line: every field is a flag, in the style of vLLM.

    --world-size 2    --world-size=2    --model.hidden-size 32
    --enable-prefix-caching    --no-enable-prefix-caching    --enable-prefix-caching false

A value that begins with `--` must be joined by `=`. Of a repeated flag the last one counts, so that a script can append
to its defaults. Values stay text.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from mmcached.cli.config.fields import ALIASES, SETTINGS, Setting, unknown_setting
from mmcached.wire.errors import ConfigError

LAYER = "command line"


@dataclass(frozen=True, slots=True)
class Flag:
    """A command-line flag.

    Attributes:
        implied: Value if none follows; None: a value is required.
        is_negation: The flag means false and takes no value.
    """

    setting: Setting
    implied: str | None = None
    is_negation: bool = False


def _all_flags() -> dict[str, Flag]:
    flags = {}
    for setting in SETTINGS.values():
        flags[setting.flag] = Flag(setting, "true" if setting.type is bool else None)
        if setting.negation:
            flags[setting.negation] = Flag(setting, "false", is_negation=True)
    return flags | {f"--{alias}": Flag(SETTINGS[path]) for alias, path in ALIASES.items()}


FLAGS: Mapping[str, Flag] = _all_flags()


def parse_arguments(arguments: Sequence[str], other_flags: Sequence[str] = ()) -> dict[str, tuple[str, str]]:
    """Parse the flags.

    Args:
        other_flags: The command's own flags, proposed for a misspelt one.

    Returns:
        By path of the setting: the text of its value, and the flag that set it.

    Raises:
        ConfigError: An unknown flag, a flag without its value, a word without a flag, or two flags for one value.
    """
    found: dict[str, tuple[str, str]] = {}
    rest = deque(arguments)
    while rest:
        word = rest.popleft()
        name, equals, text = word.partition("=")
        if not name.startswith("--"):
            raise ConfigError("argument", word, f"belongs to no flag ({LAYER})")
        flag = FLAGS.get(name)
        if flag is None:
            raise unknown_setting(name, text or _value_after(rest) or "", LAYER, (*FLAGS, *other_flags))
        path = flag.setting.path
        if flag.is_negation and equals:
            raise ConfigError(path, text, f"{name} takes no value ({LAYER})")
        if not equals:
            follows = None if flag.is_negation else _value_after(rest)
            if follows is not None:
                text = rest.popleft()
            elif flag.implied is not None:
                text = flag.implied
            else:
                raise ConfigError(path, "", f"{name} needs a value ({LAYER})")
        if path in found and flag.implied is None and found[path][1] != name:
            raise ConfigError(path, text, f"set by both {found[path][1]} and {name} ({LAYER}); give one")
        found[path] = (text, name)
    return found


def _value_after(rest: Sequence[str]) -> str | None:
    """Return the next word if it can be a value; `-1` can, `--x` is the next flag."""
    return rest[0] if rest and not rest[0].startswith("--") else None
