"""One rank of an engine with two: SGLang's own groups over gloo and its own code around the tower, which both ranks
have to run together.

    python -m tests.hosts.sglang.engine_rank RANK MEETING CHECKPOINT
"""

from __future__ import annotations

import hashlib
import sys
from typing import Any

import torch
from sglang.srt.distributed import parallel_state, tensor_model_parallel_all_reduce
from sglang.srt.managers.schedule_batch import MultimodalDataItem
from sglang.srt.runtime_context import SpawnRanks, publish
from sglang.srt.server_args import ServerArgs

from tests.hosts.sglang.rank_processes import answer_lines
from tests.hosts.sglang.test_engine_cache import Engine
from tests.hosts.sglang.test_updates import Model, Served


class Rank(Engine):
    """Computes the sum of what its ranks compute, as a tensor-parallel tower does."""

    def tower(self, items: list[MultimodalDataItem]) -> torch.Tensor:
        whole = super().tower(items)
        half = whole.clone()
        half[:, parallel_state.get_tp_group().rank_in_group :: 2] = 0
        rows: torch.Tensor = tensor_model_parallel_all_reduce(half)
        return rows


class Commands:
    """What a test tells a rank; each method returns the answer."""

    def __init__(self, rank: int) -> None:
        model = Model()
        with torch.no_grad():
            model.visual.bias.fill_(float(rank))
        self._served = Served(Rank, model)

    def step(self, *pictures: int) -> dict[str, Any]:
        """Return the digest of the pictures' embeddings, and what was encoded for them."""
        engine = self._served.engine
        engine.encoded.clear()
        embedding = engine.step(*pictures)
        return {"sha256": hashlib.sha256(embedding.numpy().tobytes()).hexdigest(), "encoded": list(engine.encoded)}

    def forget(self) -> None:
        """Empty SGLang's own cache, as other pictures would do in time."""
        super(type(self._served.engine.cache), self._served.engine.cache).clear()

    def update(self, by: float) -> None:
        self._served.update("visual", by)

    def break_weights(self) -> None:
        """Make the weights unreadable, and tell the engine that they have changed."""
        self._served.runner.model.state_dict = lambda **named: 1 / 0  # type: ignore[method-assign, assignment]
        self._served.tell()

    def mend_weights(self) -> None:
        del self._served.runner.model.state_dict
        self._served.tell()

    def break_device(self) -> None:
        """Make the next copy to the device fail."""
        device = self._served.engine.cache._device
        load = device.load

        def fail(tensors: Any) -> Any:
            device.load = load  # type: ignore[method-assign]
            raise RuntimeError("no memory")

        device.load = fail  # type: ignore[method-assign]


def main(rank: str, meeting: str, checkpoint: str) -> None:
    arguments = ServerArgs(model_path=checkpoint, device="cpu", dtype="float32", tp_size=2)
    publish(arguments, role="scheduler", ranks=SpawnRanks(world_rank=int(rank), dp_rank=0, gpu_id=0))
    parallel_state.init_distributed_environment(
        2, int(rank), f"file://{meeting}", local_rank=int(rank), backend="gloo", timeout=300
    )
    parallel_state.initialize_model_parallel(backend="gloo")
    answer_lines(Commands(int(rank)))


if __name__ == "__main__":
    main(*sys.argv[1:])
