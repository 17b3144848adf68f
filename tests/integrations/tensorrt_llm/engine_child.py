"""A process of TensorRT-LLM with one model, whose user has installed the adapter before importing TensorRT-LLM.

    python -m tests.integrations.tensorrt_llm.engine_child OPTIONS

A line of JSON in: a command and its values; a line out: its result. With `meeting`, a path, it is one of two ranks that
meet there.
"""

from __future__ import annotations

import datetime
import json
import logging
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch

from mmcached.client import Client
from mmcached.integrations.tensorrt_llm import install

DEADLINE_S = 30.0
COLLECTIVE_S = 20.0


class Engine:
    """What the commands do; each is a method."""

    def __init__(
        self,
        run_dir: str,
        checkpoint: str,
        *,
        installs: bool | None = True,
        meeting: str = "",
        rank: int = 0,
        attention_dp: bool = False,
        dtype: str = "float32",
        **options: Any,
    ) -> None:
        if installs:
            install(run_dir)
        from tests.integrations.tensorrt_llm.models import TinyModel

        mapping = SimpleNamespace(tp_size=2 if attention_dp else 1, tp_rank=rank, enable_attention_dp=attention_dp)
        if meeting:
            torch.distributed.init_process_group(
                "gloo",
                init_method=f"file://{meeting}",
                rank=rank,
                world_size=2,
                timeout=datetime.timedelta(seconds=COLLECTIVE_S),
            )
            mapping.tp_size, mapping.tp_group_pg = 2, torch.distributed.group.WORLD
        self.run_dir = run_dir
        self.model = TinyModel(Path(checkpoint), mapping=mapping, dtype=getattr(torch, dtype), **options)
        if installs is False:
            # Another engine of this process may have installed it.
            object.__setattr__(self.model, "_mmcached_encoder_cache", None)

    @property
    def _shared(self) -> Any:
        _ = self.model.cache  # makes it, if there is none yet
        return vars(self.model).get("_mmcached_encoder_cache")

    def step(self, *pictures: int) -> dict[str, Any]:
        """Return the rows of a request, how many of its items were encoded, and the number of saved outputs."""
        self.model.encoded.clear()
        rows = self.model.step(*pictures)
        shared = self._shared
        assert shared is None or shared.saver.drain(DEADLINE_S)
        return {"rows": rows.tolist(), "encoded": sorted(self.model.encoded)}

    def name(self) -> str | None:
        return None if self._shared is None else self._shared.name

    def found(self) -> int:
        return int(self._shared.num_found)

    def put_record(self, picture: int, shape: list[int], dtype: str, value: float) -> bool:
        """Put a record under the key of a picture, as a foreign program may."""
        from tests.integrations.tensorrt_llm.models import key_of

        with Client(self.run_dir, fail_open=False) as client:
            record = {"embedding": torch.full(shape, value, dtype=getattr(torch, dtype))}
            return bool(client.put(self._shared._key(key_of(picture)), record))

    def drop_record(self, picture: int) -> None:
        from tests.integrations.tensorrt_llm.models import key_of

        with Client(self.run_dir, fail_open=False) as client:
            client.drop(self._shared._key(key_of(picture)))

    def write(self, part: str, factor: float) -> None:
        """Multiply the weights of a part in place."""
        with torch.no_grad():
            getattr(self.model, part).weight.mul_(factor)

    def forget(self) -> None:
        """Empty TensorRT-LLM's own cache."""
        self.model.cache._items.clear()
        self.model.cache._current_bytes = 0

    def lose_the_store(self, is_lost: bool) -> None:
        """Have this rank alone find nothing, or find again."""
        if is_lost:
            self._shared._tensors.get = lambda key: None
        else:
            del self._shared._tensors.get

    def get_other_key(self) -> bool:
        """Ask with a key of another form; return whether it is a miss."""
        return self.model.cache.get(("image", (1, 2), 3, "kwargs", "more")) is None

    def close(self) -> None:
        if self._shared is not None:
            self._shared.close()


def main(options: str) -> None:
    logging.basicConfig(stream=sys.stderr)
    torch.set_num_threads(1)
    engine = Engine(**json.loads(options))
    for line in sys.stdin:
        command, values = json.loads(line)
        sys.stdout.write(json.dumps(getattr(engine, command)(*values)) + "\n")
        sys.stdout.flush()


if __name__ == "__main__":
    main(*sys.argv[1:])
