"""Examples of every message of every union, made of the types of their fields: with only what must be said, and with
each alternative, smallest and largest value of each field.
"""

from __future__ import annotations

import re
from typing import Any, get_args

import msgspec
from msgspec import inspect

from mmcached.wire.config import ServiceConfig
from mmcached.wire.errors import CacheMiss, error_to_wire
from mmcached.wire.handle import RingAnnouncement
from mmcached.wire.messages import client, engine, frontend, worker
from mmcached.wire.messages import frontend_from_engines as from_engine
from mmcached.wire.messages.parts import EncoderForm, TensorForm

RING_ID = "0123456789abcdef" * 2
ANNOUNCEMENT = RingAnnouncement(1000, RING_ID, 2**62, 1 << 30, 4096, 8)
ENCODER = EncoderForm(
    "reference",
    {"image": [TensorForm("pixel_values", "uint8", (-1, 12))]},
    [TensorForm("embeddings", "int32", (-1, 8))],
)
ERROR = error_to_wire(CacheMiss(["a", "b"]))
TEXTS = ("see <image>", RING_ID, "vllm-0.30_x", f"00-{RING_ID}-{RING_ID[:16]}-01", "")
"""At least one of them matches each pattern of a text."""


def config_with(name: str, value: object) -> ServiceConfig:
    """Return the configuration with one setting, named as `limits.image_cpu_s` or `block_size`, changed."""
    section, _, field = name.rpartition(".")
    fields: dict[str, Any] = {"kv_events": {"enable_kv_cache_events": True}}
    fields.setdefault(section, {})[field] = value
    return ServiceConfig.from_fields(fields | fields.pop("", {}))


def values_of(kind: inspect.Type) -> list[Any]:
    """Return values of a type, ordinary ones first."""
    match kind:
        case inspect.UnionType():
            alternatives = sorted(kind.types, key=lambda each: not isinstance(each, inspect.NoneType))
            return [value for alternative in alternatives for value in values_of(alternative)]
        case inspect.NoneType():
            return [None]
        case inspect.BoolType():
            return [False, True]
        case inspect.IntType() | inspect.FloatType():
            return _numbers(kind, 1 if isinstance(kind, inspect.IntType) else 1.5)
        case inspect.StrType():
            texts = [text for text in TEXTS if len(text) >= (kind.min_length or 0)]
            return [text for text in texts if kind.pattern is None or re.search(kind.pattern, text)]
        case inspect.BytesType():
            return [b"\xff" * (kind.min_length or 5)]
        case inspect.LiteralType():
            return list(kind.values)
        case inspect.StructType():
            return _structs(kind)
        case inspect.ListType() | inspect.VarTupleType():
            values = values_of(kind.item_type)[: kind.max_length]
            as_whole = tuple if isinstance(kind, inspect.VarTupleType) else list
            return [as_whole(each) for each in ([values[0]], values, []) if len(each) >= (kind.min_length or 0)]
        case inspect.TupleType():
            return [tuple(values_of(each)[0] for each in kind.item_types)]
        case inspect.DictType():
            keys, values = values_of(kind.key_type), values_of(kind.value_type)
            return [{keys[0]: value} for value in values] + [{}]
        case _:
            return [{"a": [1, "x", None]}]


def _numbers(kind: inspect.IntType | inspect.FloatType, ordinary: float) -> list[float]:
    """Return an ordinary number, the smallest and the largest that is allowed."""
    low = kind.ge if kind.ge is not None else kind.gt
    high = kind.le if kind.le is not None else kind.lt
    one = type(ordinary)(1) if isinstance(ordinary, int) else 1e-9
    low = None if low is None else type(ordinary)(low) + one * (kind.ge is None)
    high = None if high is None else type(ordinary)(high) - one * (kind.le is None)
    bounds = [each for each in (low, high) if each is not None]
    is_allowed = (low is None or ordinary >= low) and (high is None or ordinary <= high)
    return [ordinary if is_allowed else bounds[0], *bounds]


def _structs(kind: inspect.StructType) -> list[Any]:
    values = {field.name: values_of(field.type) for field in kind.fields}
    required = {field.name: values[field.name][0] for field in kind.fields if field.required}
    most = max(map(len, values.values()), default=0)
    variants = [{name: of[index % len(of)] for name, of in values.items()} for index in range(most)]
    return [kind.cls(**fields) for fields in (required, *variants)]


UNIONS: dict[str, Any] = {
    "ToClient": client.ToClient,
    "FromClient": frontend.FromClient,
    "FromEngine": from_engine.FromEngine,
    "FromFrontend": engine.FromFrontend,
    "FromWorker": engine.FromWorker,
    "FromEngineToWorker": worker.FromEngineToWorker,
}
EXAMPLES: list[tuple[str, msgspec.Struct]] = [
    (name, message)
    for name, union in UNIONS.items()
    for kind in get_args(union)
    for message in values_of(inspect.type_info(kind))
]
