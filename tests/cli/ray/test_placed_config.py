"""What a file may say that is placed on a Ray cluster; all else is refused by name. Without Ray."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any
from unittest import mock

import pytest

from mmcached.cli.ray.placed_config import PlacedConfig, from_fields, read
from mmcached.wire.config import ServiceConfig
from mmcached.wire.errors import ConfigError


def test_nothing_said_is_a_service_on_each_node_and_one_encoder() -> None:
    config = from_fields({})
    assert config == PlacedConfig()
    assert (config.encoders.count, config.frontends.resource, config.frontends.labels) == (1, "", {})


def test_everything_can_be_said() -> None:
    config = from_fields(
        {
            "address": "10.0.0.1:6379",
            "namespace": "pictures",
            "serve": {"world_size": 1, "model": {"seed": 3}, "limits": {"remote_encode_s": 5}},
            "encoders": {
                "count": 4,
                "resources": {"num_cpus": 2, "num_gpus": 0.5, "custom": {"fast": 1}},
                "placement": "STRICT_SPREAD",
            },
            "frontends": {"resource": "host", "labels": {"zone": "a"}, "run_dir": "/run/mmcached-{node}"},
        }
    )
    assert config.encoders.resources.bundle() == {"CPU": 2.0, "GPU": 0.5, "fast": 1.0}
    fields = config.service_fields("10.0.0.1:6379")
    assert fields["encoder"]["ray_address"] == "10.0.0.1:6379"
    assert fields["encoder"]["ray_namespace"] == "pictures"
    service = ServiceConfig.from_fields(json.loads(json.dumps(fields)))
    encoder = ServiceConfig.from_fields(json.loads(json.dumps(config.encoder_fields())))
    assert (service.model, service.limits) == (encoder.model, encoder.limits)
    assert encoder.encoder.ray_address == ""


@pytest.mark.parametrize(
    ("fields", "field"),
    [
        ([], "CONFIG"),
        ({"encoder": {}}, "encoder"),
        ({"encoders": 3}, "encoders"),
        ({"encoders": {"number": 3}}, "encoders.number"),
        ({"encoders": {"count": "three"}}, "encoders.count"),
        ({"encoders": {"count": 0}}, "encoders.count"),
        ({"encoders": {"placement": "ANYWHERE"}}, "encoders.placement"),
        ({"encoders": {"resources": {"num_gpus": -1}}}, "encoders.resources.num_gpus"),
        ({"encoders": {"resources": {"custom": {"fast": -1}}}}, "encoders.resources.custom.fast"),
        ({"encoders": {"resources": {"num_cpus": 0}}}, "encoders.resources"),
        ({"frontends": {"labels": ["a"]}}, "frontends.labels"),
        ({"serve": {"world_size": "one"}}, "serve.world_size"),
        ({"serve": {"world_size": 0}}, "serve.world_size"),
        ({"serve": {"model": {"colour": 1}}}, "serve.model.colour"),
        ({"serve": {"block_size": 0}}, "block_size"),
        ({"serve": {"encoder": {"ray_address": "auto"}}}, "serve.encoder.ray_address"),
        ({"serve": {"step_timeout_s": 20.0}}, "limits.remote_encode_s"),
        ({"address": "nowhere"}, "address"),
        ({"namespace": ""}, "namespace"),
    ],
)
def test_what_cannot_be_is_named(fields: Any, field: str) -> None:
    with pytest.raises(ConfigError) as caught:
        from_fields(fields)
    assert caught.value.details["field"] == field


def test_without_ray_the_extra_is_named(tmp_path: Path) -> None:
    with mock.patch.dict(sys.modules, {"yaml": None}), pytest.raises(ConfigError) as caught:
        read(tmp_path / "placed.yaml")
    assert "pip install '.[ray]'" in str(caught.value)
