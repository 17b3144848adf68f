"""A diffusion worker of vllm-omni in a process of its own: a line of JSON for each picture asked, and for each answer.

Started as a module with the folder of a pipeline; the environment may name a service.
"""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

from tests.house import REPOSITORY
from tests.integration.processes import DEADLINE_S

START_S = 300.0
"""Deadline of an answer; the first waits for the start of the worker."""
COMMAND = (sys.executable, "-m", "tests.hosts.vllm_omni.worker_child")


class Answer(NamedTuple):
    """A picture, and the worker's counters since its start."""

    pixels: list[float]
    num_calls: int
    num_encoded: int
    num_bypassed: int


class WorkerChild:
    """A worker that has loaded its pipeline."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self._process = process

    def send(self, prompt: str, seed: int = 0) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps([prompt, seed]) + "\n")
        self._process.stdin.flush()

    def receive(self) -> Answer:
        assert self._process.stdout is not None
        deadline = threading.Timer(START_S, self._process.kill)
        deadline.start()
        try:
            for line in self._process.stdout:
                _, mark, answer = line.partition("ANSWER ")  # vllm-omni puts the worker's name before each line
                if mark:
                    return Answer(*json.loads(answer))
        finally:
            deadline.cancel()
        raise AssertionError(f"the worker ended with {self._process.wait(DEADLINE_S)}")

    def ask(self, prompt: str, seed: int = 0) -> Answer:
        self.send(prompt, seed)
        return self.receive()


@contextlib.contextmanager
def worker(folder: Path, run_dir: Path | None = None) -> Iterator[WorkerChild]:
    """Start a worker with a pipeline, and with a service if one is named."""
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(REPOSITORY)}
    environment |= {} if run_dir is None else {"MMCACHED_CONDITIONING": str(run_dir)}
    process = subprocess.Popen([*COMMAND, str(folder)], stdin=-1, stdout=-1, env=environment, text=True, cwd=REPOSITORY)
    try:
        yield WorkerChild(process)
    finally:
        process.kill()
        process.communicate()


def _main(folder: str) -> None:
    from tests.hosts.vllm_omni.cpu_platform import use_cpu

    use_cpu()
    import torch
    from vllm_omni.diffusion.data import OmniDiffusionConfig
    from vllm_omni.diffusion.request import OmniDiffusionRequest
    from vllm_omni.diffusion.worker.diffusion_worker import DiffusionWorker
    from vllm_omni.inputs.data import OmniDiffusionSamplingParams
    from vllm_omni.plugins import load_omni_general_plugins

    load_omni_general_plugins()  # as `worker_main` does
    config = OmniDiffusionConfig.from_kwargs(model=folder, dtype=torch.float32, num_gpus=1, enforce_eager=True)
    config.enrich_config()
    worker = DiffusionWorker(0, 0, config)
    for line in sys.stdin:
        prompt, seed = json.loads(line)
        asked: dict[str, Any] = {"num_inference_steps": 2, "height": 16, "width": 16, "max_sequence_length": 16}
        sampling = OmniDiffusionSamplingParams(seed=seed, output_type="pt", **asked)
        output = worker.execute_model(OmniDiffusionRequest({"prompt": prompt}, sampling, "request"), config).output
        pixels = output[0] if isinstance(output, list | tuple) else output
        (found, _) = getattr(worker.model_runner, "_mmcached_conditioning", (None, None))
        counters = [getattr(found, name, 0) for name in ("num_calls", "num_encoded", "num_bypassed")]
        print("ANSWER", json.dumps([pixels.flatten().tolist(), *counters]), flush=True)
    worker.shutdown()


if __name__ == "__main__":
    _main(sys.argv[1])
