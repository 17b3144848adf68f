"""Starts engines of `engine_child`, and talks to them; writes adapters for them."""

from __future__ import annotations

import contextlib
import json
import os
import select
import subprocess
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import torch
from safetensors.torch import load_file, save_file

from mmcached.integrations.vllm.settings import ConnectorSettings

START_S = 600.0
ANSWER_S = 240.0
STOP_S = 60.0
RANK = 4
SMALL = {
    "dtype": "float32",
    "max_model_len": 2048,
    "max_num_seqs": 8,
    "max_num_batched_tokens": 256,
    "limit_mm_per_prompt": {"image": 4},
    "enforce_eager": True,
    "seed": 0,
    "packs": False,
}


def joined(run_dir: Path, **extra: Any) -> dict[str, Any]:
    """Return the options that join an engine to the service in `run_dir`."""
    ConnectorSettings.of(extra)
    return {
        "ec_transfer_config": {
            "ec_connector": "MmcachedECConnector",
            "ec_connector_module_path": "mmcached.integrations.vllm",
            "ec_role": "ec_both",
            "ec_connector_extra_config": {"run_dir": str(run_dir), **extra},
        }
    }


class EngineProcess:
    """One engine in a process of its own. Entering waits until it answers; leaving ends it.

    Args:
        options: Arguments of `engine_child.Engine`, beside `SMALL`.
        variables: Environment variables of its process.
    """

    def __init__(
        self, model: Path, log: Path, options: Mapping[str, Any], variables: Mapping[str, str] | None = None
    ) -> None:
        self.log = log
        with log.open("wb") as file:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "tests.hosts.vllm.engine_child"],
                env=_environment() | dict(variables or {}),
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=file,
                start_new_session=True,
            )
        self._write({"model": str(model), **SMALL, **options})
        self._is_starting = True

    def __enter__(self) -> Self:
        try:
            self.wait_until_ready()
        except BaseException:
            self.stop()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    def wait_until_ready(self) -> None:
        if self._is_starting:
            self.answer(START_S)
            self._is_starting = False

    def do(self, command: str, **values: Any) -> Any:
        """Have the engine do a command of `engine_child.Engine`; return its result."""
        self.begin(command, **values)
        return self.answer()

    def begin(self, command: str, **values: Any) -> None:
        """Send a command; `answer` must follow."""
        self.wait_until_ready()
        self._write([command, values])

    def answer(self, timeout_s: float = ANSWER_S) -> Any:
        """Return the result of the command that was sent.

        Raises:
            RuntimeError: The engine has ended, or takes too long.
        """
        assert self._process.stdout is not None
        file, give_up, found = self._process.stdout.fileno(), time.monotonic() + timeout_s, b""
        while not found.endswith(b"\n"):
            is_ready = select.select([file], [], [], max(0.0, give_up - time.monotonic()))[0]
            part = os.read(file, 1 << 16) if is_ready else b""
            if not part:
                raise RuntimeError(f"the engine does not answer:\n{self.log.read_text()[-6000:]}")
            found += part
        return json.loads(found)

    def stop(self) -> None:
        """End it in order; may be called again."""
        for pipe in (self._process.stdin, self._process.stdout):
            assert pipe is not None
            with contextlib.suppress(BrokenPipeError):  # it died with a command before it
                pipe.close()
        try:
            self._process.wait(STOP_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()

    def _write(self, line: Any) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps(line).encode() + b"\n")
        self._process.stdin.flush()


def write_adapter(checkpoint: Path, folder: Path, *, layer: str) -> Path:
    """Write a LoRA adapter with random weights for one linear layer of a checkpoint.

    Args:
        layer: The layer by its name in the checkpoint, such as `model.layers.0.self_attn.q_proj`.
    """
    rows, columns = load_file(str(checkpoint / "model.safetensors"))[f"{layer}.weight"].shape
    draw = torch.Generator().manual_seed(0)
    weights = {
        f"base_model.model.{layer}.lora_A.weight": torch.randn(RANK, columns, generator=draw),
        f"base_model.model.{layer}.lora_B.weight": torch.randn(rows, RANK, generator=draw),
    }
    folder.mkdir()
    save_file(weights, str(folder / "adapter_model.safetensors"))
    settings = {"peft_type": "LORA", "r": RANK, "lora_alpha": RANK, "target_modules": [layer.rpartition(".")[2]]}
    (folder / "adapter_config.json").write_text(json.dumps(settings))
    return folder


def _environment() -> dict[str, str]:
    return os.environ | {
        "HF_HUB_OFFLINE": "1",
        "OMP_NUM_THREADS": "1",
        "PYTHONPATH": os.pathsep.join(path for path in [os.getcwd(), os.environ.get("PYTHONPATH")] if path),
        "VLLM_CPU_KVCACHE_SPACE": "1",
        "VLLM_CPU_OMP_THREADS_BIND": "nobind",
        "VLLM_LOGGING_LEVEL": "ERROR",
        "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
        "VLLM_NO_USAGE_STATS": "1",
    }
