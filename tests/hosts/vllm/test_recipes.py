"""vLLM's own command line reads the options in deploy/recipes, in each of the ways in which they are written there."""

from __future__ import annotations

import shlex
from typing import Any

import pytest
import yaml
from vllm.engine.arg_utils import AsyncEngineArgs
from vllm.utils.argparse_utils import FlexibleArgumentParser

from tests.house import REPOSITORY

pytestmark = pytest.mark.filterwarnings("default")
RECIPES = REPOSITORY / "deploy" / "recipes"


def recipe(name: str) -> Any:
    return yaml.safe_load((RECIPES / name).read_text())


def words(name: str) -> list[str]:
    """Return the options of a recipe's server as the server gets them."""
    match name:
        case "kserve":
            (server,) = recipe("kserve/node.yaml")["spec"]["template"]["containers"]
            return list(server["args"])
        case "llm-d":
            _, patch = recipe("llm-d/node/kustomization.yaml")["patches"]
            return [yaml.safe_load(patch["patch"])[0]["value"]]
        case "production-stack":
            (model,) = recipe("production-stack/values.yaml")["servingEngineSpec"]["modelSpec"]
            return list(model["vllmConfig"]["extraArgs"])
        case "vm":
            lines = (RECIPES / "vm" / "vllm@.service").read_text().splitlines()
            (command,) = (line for line in lines if line.startswith("ExecStart="))
            found = shlex.split(command)
            return found[found.index("--ec-transfer-config") :]
    raise AssertionError(name)


@pytest.mark.parametrize("name", ["kserve", "llm-d", "production-stack", "vm"])
def test_the_command_line_reads_the_connector(name: str) -> None:
    parser = AsyncEngineArgs.add_cli_args(FlexibleArgumentParser())
    config = parser.parse_args(words(name)).ec_transfer_config
    assert config.ec_connector == "MmcachedECConnector"
    assert config.ec_connector_module_path == "mmcached.integrations.vllm"
    assert config.ec_role == "ec_both"
    run_dir = "/run/mmcached/vllm" if name == "vm" else "/run/mmcached/service"
    assert config.ec_connector_extra_config == {"run_dir": run_dir}
