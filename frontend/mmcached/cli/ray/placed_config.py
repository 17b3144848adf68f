"""Reads and checks the YAML file of `mmcached ray up`, before any call to the cluster.

address: auto                     # of the cluster
serve: {…}                        # settings of every service; model, encoder and device also for the encoders
encoders: {count, resources, placement}
frontends: {resource, labels, run_dir, resources}
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal, TypeVar, cast

import msgspec

from mmcached.wire.config import ServiceConfig
from mmcached.wire.config_checks import check_address
from mmcached.wire.errors import ConfigError
from mmcached.wire.extras import how_to_install
from mmcached.wire.limits import check_range
from mmcached.wire.model_config import EncoderConfig

MAX_ENCODERS = 10_000
Section = TypeVar("Section", bound=msgspec.Struct)


class Resources(msgspec.Struct, frozen=True, kw_only=True):
    """Resources of one actor; `custom` are resources that the cluster's owner has named."""

    num_cpus: float = 1.0
    num_gpus: float = 0.0
    custom: dict[str, float] = {}

    def bundle(self) -> dict[str, float]:
        named = {"CPU": self.num_cpus, "GPU": self.num_gpus, **self.custom}
        return {name: amount for name, amount in named.items() if amount}

    def options(self) -> dict[str, Any]:
        return {"num_cpus": self.num_cpus, "num_gpus": self.num_gpus, "resources": self.custom}


class Encoders(msgspec.Struct, frozen=True, kw_only=True):
    """The number of encoders, the resources of each, and their placement on nodes."""

    count: int = 1
    resources: Resources = Resources()
    placement: Literal["SPREAD", "PACK", "STRICT_SPREAD", "STRICT_PACK"] = "SPREAD"


class Frontends(msgspec.Struct, frozen=True, kw_only=True):
    """The nodes that run a service: those with `resource` and `labels`; all by default.

    `run_dir` is its directory there ("" for the default of `mmcached serve`); `{node}` in it becomes the node's id.
    """

    resource: str = ""
    labels: dict[str, str] = {}
    run_dir: str = ""
    resources: Resources = Resources(num_cpus=0.0)


class PlacedConfig(msgspec.Struct, frozen=True, kw_only=True):
    """The placement of all services and encoders."""

    address: str = "auto"
    namespace: str = "mmcached"
    serve: ServiceConfig = ServiceConfig()
    encoders: Encoders = Encoders()
    frontends: Frontends = Frontends()

    def __post_init__(self) -> None:
        check_address("address", self.address)
        if not self.namespace:
            raise ConfigError("namespace", "", "must not be empty")
        own = EncoderConfig()
        for name in ("ray_address", "ray_namespace"):
            if getattr(self.serve.encoder, name) != getattr(own, name):
                limit = "must not be set: it follows from address and namespace"
                raise ConfigError(f"serve.encoder.{name}", getattr(self.serve.encoder, name), limit)
        if not self.serve.has_workers:
            raise ConfigError("serve.world_size", 0, "must be at least 1: it is workers that ask encoders")
        check_range("encoders.count", self.encoders.count, 1, MAX_ENCODERS)
        for path, resources in (
            ("encoders.resources", self.encoders.resources),
            ("frontends.resources", self.frontends.resources),
        ):
            for name, amount in (
                ("num_cpus", resources.num_cpus),
                ("num_gpus", resources.num_gpus),
                *((f"custom.{name}", amount) for name, amount in resources.custom.items()),
            ):
                check_range(f"{path}.{name}", amount, 0, 1 << 20)
        if not self.encoders.resources.bundle():
            raise ConfigError("encoders.resources", "{}", "must have a resource above 0")
        _ = self.service_fields("auto")  # raises for an invalid configuration

    def service_fields(self, address: str) -> dict[str, Any]:
        """Return the configuration of a service that uses the encoders, as plain values."""
        encoder = msgspec.structs.replace(self.serve.encoder, ray_address=address, ray_namespace=self.namespace)
        config = msgspec.structs.replace(self.serve, encoder=encoder)
        return cast("dict[str, Any]", msgspec.to_builtins(config))

    def encoder_fields(self) -> dict[str, Any]:
        return cast("dict[str, Any]", msgspec.to_builtins(self.serve))


def read(file: Path) -> PlacedConfig:
    """Read a file; ConfigError if it cannot be read, or as `from_fields`."""
    try:
        import yaml
    except ModuleNotFoundError:
        raise missing() from None
    try:
        fields = yaml.safe_load(file.read_text())
    except OSError as error:
        raise ConfigError("CONFIG", str(file), f"cannot be read: {error.strerror}") from error
    except (yaml.YAMLError, UnicodeDecodeError, RecursionError) as error:
        raise ConfigError("CONFIG", str(file), "is not valid YAML") from error
    return from_fields({} if fields is None else fields)


def from_fields(fields: object) -> PlacedConfig:
    """Return the placement that plain values describe.

    Raises:
        ConfigError: A name is unknown, or a value has another type or is out of range.
    """
    return _section(PlacedConfig, fields, "")


def missing() -> ConfigError:
    return ConfigError("ray", "not installed", f"is needed: {how_to_install('ray')}")


def _section(kind: type[Section], given: object, path: str) -> Section:
    if not isinstance(given, Mapping):
        raise ConfigError(path or "CONFIG", str(given), "must be a section of names and values")
    known = {field.name: field.type for field in msgspec.structs.fields(kind)}
    values = {}
    for name, value in given.items():
        full = f"{path}.{name}" if path else str(name)
        if name not in known:
            raise ConfigError(full, str(value), f"is unknown; the names are {', '.join(known)}")
        values[name] = _value(known[name], value, full)
    return kind(**values)


def _value(kind: Any, given: object, path: str) -> Any:
    if isinstance(kind, type) and issubclass(kind, msgspec.Struct):
        return _section(kind, given, path)
    try:
        return msgspec.convert(given, kind)
    except msgspec.ValidationError as error:
        wanted = getattr(kind, "__args__", None) or getattr(kind, "__name__", kind)
        raise ConfigError(path, str(given), f"must be of type {wanted}") from error
