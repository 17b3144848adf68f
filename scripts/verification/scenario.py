"""Explores a world that a setting makes, with the product's modules on modelled words."""

from __future__ import annotations

import contextlib
from dataclasses import dataclass
from typing import Any, Generic, Protocol, TypeVar
from unittest import mock

from scripts.verification.explorer import Explorer, Finding
from scripts.verification.weak_memory import Order, World


class Setting(Protocol):
    """Says what a world is, but for its order of memory.

    Attributes:
        patches: (module, name, replacement): what a mutant has in the product's place.
    """

    @property
    def patches(self) -> tuple[tuple[Any, str, Any], ...]: ...
    def modelled_words(self) -> contextlib.AbstractContextManager[None]: ...
    def start(self, order: Order) -> World: ...


SettingT_co = TypeVar("SettingT_co", bound=Setting, covariant=True)


@dataclass(frozen=True)
class Scenario(Generic[SettingT_co]):
    name: str
    setting: SettingT_co
    order: Order

    def explore(self, *, limit: int | None = None) -> Finding:
        """Look at every state that can be reached.

        Args:
            limit: stop after so many states.
        """
        with contextlib.ExitStack() as stack:
            stack.enter_context(self.setting.modelled_words())
            for module, name, replacement in self.setting.patches:
                stack.enter_context(mock.patch.object(module, name, replacement))
            return Explorer(self.setting.start(self.order), limit=limit).run()
