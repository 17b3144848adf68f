"""Checks of devices, addresses, URLs and the encoder's settings; ranges are in `config` and `limits`."""

from __future__ import annotations

from urllib.parse import urlsplit

from mmcached.wire.errors import ConfigError
from mmcached.wire.model_config import EncoderConfig
from mmcached.wire.shown_url import shown_url


def check_encoder(encoder: EncoderConfig, step_timeout_s: float, remote_encode_s: float, *, may_encode: bool) -> None:
    """Raise ConfigError if the encoder's settings contradict each other.

    Args:
        remote_encode_s: The longest time that a call of a remote encoder may take.
        may_encode: Whether the service has workers.
    """
    for field, value in (("encoder.kind", encoder.kind), ("encoder.ray_address", encoder.ray_address)):
        if not may_encode and value not in ("reference", ""):
            limit = "must not be set: with world_size = 0 there is only a store, and nothing encodes"
            raise ConfigError(field, value, limit)
    if encoder.ray_address:
        check_address("encoder.ray_address", encoder.ray_address)
    if encoder.ray_address and remote_encode_s >= step_timeout_s:
        limit = f"must be below step_timeout_s = {step_timeout_s}: a step that takes longer ends its workers"
        raise ConfigError("limits.remote_encode_s", remote_encode_s, limit)
    if not encoder.ray_namespace:
        raise ConfigError("encoder.ray_namespace", "", "must not be empty")


def check_address(field: str, address: str) -> None:
    host, _, port = address.rpartition(":")
    if address != "auto" and not (host and port.isdecimal() and int(port) < 65_536):
        raise ConfigError(field, address, "must be HOST:PORT, or auto")


def check_device(field: str, device: str) -> None:
    kind, _, index = device.partition(":")
    plain = device in ("auto", "cpu", "cuda")
    if not plain and not (kind == "cuda" and index.isdecimal()):
        raise ConfigError(field, device, "must be auto, cpu, cuda or cuda:<index>")


def check_traces_endpoint(url: str) -> None:
    """Raise ConfigError if this is not the URL of an OTLP/HTTP collector; "" means no collector."""
    if not url:
        return
    field, shown = "otlp_traces_endpoint", shown_url(url)
    try:
        parts = urlsplit(url)
        has_place = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
    except ValueError:
        has_place = False
    if not has_place:
        raise ConfigError(field, shown, "must be http://HOST:PORT/v1/traces, or https://…")
    if "@" in parts.netloc:
        raise ConfigError(field, shown, "must have no password: set OTEL_EXPORTER_OTLP_HEADERS in the environment")
