"""Computes a digest of the code that a vision tower runs, and detects changes of it.

    `forward` and `__call__` of each module's class; the model's method for images; the attention function in use
        methods of the class that these name             followed: names in their code count too
        functions of their own module that these name    followed
        functions, classes, constants of other modules   count by their own code or value, and are not followed
    attributes of each module that this code names, such as the epsilon of a norm

Code of Transformers, diffusers, torch and Python goes into the digest: another version, an edited file or a replaced
function changes it, whenever it was replaced. Code from elsewhere may depend on anything: a tower that runs such code
has no digest that could be shared, and neither has a compiled one. Functions called by a function that is not followed
are not covered.
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from operator import itemgetter
from types import BuiltinFunctionType, CodeType, FunctionType, MethodType, ModuleType
from typing import Any, NamedTuple

import torch
from blake3 import blake3

from mmcached.integrations.transformers.function_code import names_in, paths_in, text_of

_KNOWN_PACKAGES = frozenset({"torch", "transformers", "diffusers"}) | sys.stdlib_module_names
_ENTRIES = ("__call__", "forward")
_CALL = ("__call__", "_wrapped_call_impl", "_call_impl", "_slow_forward")
"""Methods of every module that lead from a call to `forward`."""
_OF_EVERY_MODULE = frozenset(torch.nn.Module().__dict__)
_SCALARS = (type(None), bool, int, float, complex, str, bytes, torch.dtype, torch.device)
_COLLECTIONS = (tuple, list, set, frozenset, dict)
_OF_TORCH = vars(torch.nn.modules.module)
_ABSENT = object()


class TowerCode:
    """The code behind a model's image features, as it is now.

    Args:
        model: A model of Transformers. No reference to it is kept.
        others: Names of the model's children that image features do not depend on.
        method: The model's method for image features.
        attention: Names of the attention functions that the configuration selects.

    Attributes:
        digest: Digest of the code, 64 hex digits.
        obstacle: Why outputs of this code cannot be shared; None if they can.
    """

    def __init__(self, model: torch.nn.Module, others: frozenset[str], method: str, attention: Iterable[str]) -> None:
        named = [(path, module) for path, module in model.named_modules() if path.split(".")[0] not in others]
        self._reader = reader = _Reader()
        for kind in sorted({type(module) for _, module in named}, key=_name_of):
            reader.read_class(kind, (method,) if kind is type(model) else _ENTRIES)
        reader.read_attention(attention)
        self._instances = [
            reader.read_instance(path, module, method if module is model else "") for path, module in named
        ]
        self._kind = type(model)
        self._kinds = [(module, type(module)) for _, module in named if module is not model]
        self.digest = blake3("\n".join(sorted(reader.lines)).encode()).hexdigest()
        self.obstacle = reader.obstacle

    def is_changed(self, model: torch.nn.Module) -> bool:
        """Return whether a class, a function, or an attribute that the code names was replaced since."""
        if type(model) is not self._kind or any(type(module) is not kind for module, kind in self._kinds):
            return True
        try:
            has_other_attributes = any(
                values_of(holder) != values or not absent.isdisjoint(holder)
                for holder, values_of, values, absent in self._instances
            )
        except (KeyError, RuntimeError, TypeError, ValueError):  # an attribute is gone, or cannot be compared
            return True
        return has_other_attributes or self._reader.is_changed()


def is_run_unchanged(modules: Iterable[torch.nn.Module]) -> bool:
    """Return whether nothing intercepts the modules' code now, in this thread.

    That is: no hooks but those of Transformers, no modes that intercept operations, no compiler.
    """
    of_all = torch.nn.modules.module
    is_hooked = of_all._global_forward_hooks or of_all._global_forward_pre_hooks
    is_intercepted = torch._C._len_torch_dispatch_stack() or any(
        type(torch._C._get_function_stack_at(place)) is not torch.utils._device.DeviceContext
        for place in range(torch._C._len_torch_function_stack())
    )
    # A compiler that has broken its graph in the middle of a model compiles the functions called from there.
    is_compiled = torch._C._dynamo.eval_frame.get_eval_frame_callback() is not None
    return not (is_hooked or is_intercepted or is_compiled) and all(
        isinstance(hook, FunctionType) and _is_known(hook.__globals__)
        for module in modules
        for hooks in (module._forward_hooks, module._forward_pre_hooks)
        if hooks
        for hook in hooks.values()
    )


class _Instance(NamedTuple):
    """The attributes of one module that its code names, as they were read.

    Attributes:
        values_of: Returns the attributes that the module has, from its `__dict__`.
        absent: Names that the class has and the module's `__dict__` lacks.
    """

    holder: dict[str, Any]
    values_of: Callable[[dict[str, Any]], tuple[Any, ...]]
    values: tuple[Any, ...]
    absent: frozenset[str]


class _Reader:
    """Reads code, and remembers where each value was found.

    Attributes:
        lines: A description of each value, with its place.
        obstacle: The first value that cannot be described.
    """

    def __init__(self) -> None:
        self.lines: set[str] = set()
        self.obstacle: str | None = None
        self._links: dict[tuple[int, str], tuple[Mapping[str, Any], str, Any]] = {}
        self._functions: dict[int, tuple[FunctionType, CodeType, Any, Any]] = {}
        self._followed: set[tuple[int, type | None]] = set()
        self._names: dict[type, set[str]] = {}

    def is_changed(self) -> bool:
        """Return whether a name now has another value, or a function other code."""
        return not (
            all(holder.get(name, _ABSENT) is value for holder, name, value in self._links.values())
            and all(
                function.__code__ is code and function.__defaults__ is defaults and function.__kwdefaults__ == named
                for function, code, defaults, named in self._functions.values()
            )
        )

    def read_class(self, kind: type, entries: Iterable[str]) -> None:
        for each in kind.__mro__:
            if not _is_known_name(each.__module__):
                self._refuse(f"class {_name_of(each)}")
        for name in entries:
            self._read_method(kind, name)

    def read_attention(self, names: Iterable[str]) -> None:
        for module, registry in (
            ("transformers.modeling_utils", "ALL_ATTENTION_FUNCTIONS"),
            ("transformers.masking_utils", "ALL_MASK_ATTENTION_FUNCTIONS"),
        ):
            functions = getattr(sys.modules.get(module), registry, None) or {}
            for name in names:
                function = functions.get(name, _ABSENT)
                self._link(functions, name, function)
                if function is not _ABSENT:
                    self._line(f"{registry}[{name}]", function, None, follows=True)

    def read_instance(self, path: str, module: torch.nn.Module, exempt: str) -> _Instance:
        """Read the attributes, except `exempt`, of a module that its code names."""
        kind, holder = type(module), module.__dict__
        names = self._names.get(kind, set()) | set(_ENTRIES)
        names -= {exempt, *_OF_EVERY_MODULE}
        present = sorted(names & holder.keys())
        of_class = {name for name in names if any(name in vars(each) for each in kind.__mro__)}
        self.lines.add(f"{path}: {_name_of(kind)}")
        for name in present:
            if name in of_class and callable(getattr(kind, name)):
                self._refuse(f"{name} of {path or _name_of(kind)}, which is not its class's")
            self._line(f"{path}.{name}", holder[name], None, by_value=True)
        # With one name `itemgetter` returns no tuple.
        values_of = itemgetter(*present, present[0]) if present else _none_of
        return _Instance(holder, values_of, _copies(values_of(holder)), frozenset(of_class.difference(present)))

    # ---- how

    def _refuse(self, what: str) -> None:
        self.obstacle = self.obstacle or what

    def _link(self, holder: Any, name: str, value: Any) -> None:
        self._links[id(holder), name] = holder, name, value

    def _line(
        self, place: str, value: Any, owner: type | None, *, follows: bool = False, by_value: bool = False
    ) -> None:
        self.lines.add(f"{place}: {self._describe(place, value, owner, follows=follows, by_value=by_value)}")

    def _read_method(self, kind: type, name: str) -> None:
        for each in kind.__mro__:
            value = vars(each).get(name, _ABSENT)
            if each is not object:
                self._links[id(each), name] = vars(each), name, value
            if value is not _ABSENT:
                is_followed = each is not torch.nn.Module or name in _CALL
                self._line(f"{_name_of(kind)}.{name}", value, kind, follows=is_followed)
                return

    def _describe(self, place: str, value: Any, owner: type | None, *, follows: bool, by_value: bool) -> str:
        """Return a description of a value; a value without one is an obstacle.

        Args:
            owner: The class, if the value is a method.
            follows: Also read the names in the value's code.
            by_value: Describe a collection by its elements; not for a collection of a module, which may be a cache.
        """
        describe = functools.partial(self._describe, place, owner=owner, follows=follows, by_value=by_value)
        if isinstance(value, _SCALARS):
            return f"{type(value).__name__} {value!r}"
        if isinstance(value, FunctionType):
            return self._describe_function(place, value, owner, follows=follows)
        if isinstance(value, (staticmethod, classmethod, MethodType)):
            bound = describe(value.__self__) if isinstance(value, MethodType) else ""
            return f"{type(value).__name__} {describe(value.__func__)} {bound}"
        if isinstance(value, property):
            return f"property {describe(value.fget)}"
        if isinstance(value, functools.partial):
            return f"partial {describe(value.func)} {describe(value.args)} {describe(value.keywords)}"
        if isinstance(value, (functools.cached_property, functools._lru_cache_wrapper)):
            inner = value.func if isinstance(value, functools.cached_property) else value.__wrapped__
            return f"{type(value).__name__} {describe(inner)}"
        if type(value) in _COLLECTIONS and by_value:
            items = list(value.items() if isinstance(value, dict) else value)
            texts = [describe(each) for each in items]
            return f"{type(value).__name__} {texts if isinstance(value, (tuple, list)) else sorted(texts)}"
        kind = value if isinstance(value, type) else type(value)
        name = value.__name__ if isinstance(value, ModuleType) else _name_of(kind)
        if isinstance(value, BuiltinFunctionType):
            name = f"{value.__module__}.{value.__qualname__}"
        is_ours = isinstance(value, ModuleType) or _is_known_name(getattr(value, "__module__", None) or name)
        if not is_ours or isinstance(value, torch.Tensor):
            self._refuse(f"{name} in {place}")
        if name.startswith("diffusers.") and "__call__" in vars(kind):  # such as a processor of attention
            self.read_class(kind, ("__call__",))
        if isinstance(value, torch.nn.Module):
            self.read_class(kind, _ENTRIES)
            if next(value.parameters(), None) is not None:
                self._refuse(f"{name} in {place}")
        return f"{'' if value is kind else 'a '}{name}"

    def _describe_function(self, place: str, function: FunctionType, owner: type | None, *, follows: bool) -> str:
        code = function.__code__
        self._functions[id(function)] = (
            function,
            code,
            function.__defaults__,
            dict(function.__kwdefaults__ or {}) or None,
        )
        if not _is_known(function.__globals__):
            self._refuse(f"{function.__module__}.{function.__qualname__} in {place}")
        if hasattr(function, "_torchdynamo_orig_callable"):
            self._refuse(f"{place}, which is compiled")
        if (id(function), owner) in self._followed:
            return f"function {text_of(code)}"
        self._followed.add((id(function), owner))
        cells = [cell.cell_contents for cell in function.__closure__ or () if not _is_empty(cell)]
        parts = [*cells, *(function.__defaults__ or ()), function.__kwdefaults__]
        texts = [self._describe(place, part, owner, follows=follows, by_value=True) for part in parts]
        if follows:
            self._follow(function, owner)
        return f"function {text_of(code)} {texts}"

    def _follow(self, function: FunctionType, owner: type | None) -> None:
        space = function.__globals__
        if owner is not None:
            # The owner of an attribute is unknown here; additional names do no harm.
            names = names_in(function.__code__)
            self._names.setdefault(owner, set()).update(names)
            for name in sorted(names):
                if any(name in vars(each) for each in owner.__mro__[:-1]):
                    self._read_method(owner, name)
        if space is _OF_TORCH:
            return  # torch's code around `forward`; `is_run_unchanged` checks its hooks with each call
        for path in sorted(paths_in(function.__code__)):
            self._read_path(space, path, home=space)

    def _read_path(self, space: dict[str, Any], path: Sequence[str], home: dict[str, Any]) -> None:
        """Read the value of a path in code, such as `torch.nn.functional.linear`, as far as it leads through modules.

        Args:
            home: Globals of the code.
        """
        name, *rest = path
        if name not in space:
            return  # a builtin, or an attribute of a computed value
        value = space[name]
        self._link(space, name, value)
        if isinstance(value, ModuleType) and rest:
            if _is_known(vars(value)):
                self._read_path(vars(value), rest, home)
            return
        is_of_home = isinstance(value, FunctionType) and value.__globals__ is home
        follows = is_of_home and home["__name__"].startswith(("transformers.", "diffusers."))
        self._line(f"{space['__name__']}.{name}", value, None, follows=follows)


def _name_of(kind: type) -> str:
    return f"{kind.__module__}.{kind.__qualname__}"


def _is_known_name(module: str) -> bool:
    return module.partition(".")[0] in _KNOWN_PACKAGES


def _is_known(space: Mapping[str, Any]) -> bool:
    """Return whether these are the globals of a module of Transformers, diffusers, torch or Python."""
    name = space.get("__name__", "")
    return _is_known_name(name) and getattr(sys.modules.get(name), "__dict__", None) is space


def _is_empty(cell: Any) -> bool:
    try:
        cell.cell_contents  # noqa: B018
    except ValueError:
        return True
    return False


def _none_of(holder: dict[str, Any]) -> tuple[Any, ...]:
    return ()


def _copies(values: tuple[Any, ...]) -> tuple[Any, ...]:
    """Return values with their collections copied, so that in-place changes can be detected."""
    return tuple(type(each)(each) if type(each) in _COLLECTIONS else each for each in values)
