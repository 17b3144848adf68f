"""A service that caches tiles: each has the bits of Transformers for the tile alone, and none is encoded twice."""

from __future__ import annotations

import os
import signal
from io import BytesIO
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from PIL import Image

from mmcached.cache.output_names import is_exact
from mmcached.cli.serve.child_service import ChildService
from mmcached.client import Client
from mmcached.wire.config import ServiceConfig
from mmcached.wire.engine_stats import WorkerStats
from mmcached.wire.errors import InvalidRequest
from mmcached.worker.encoders.checkpoint import CheckpointEncoder
from mmcached.worker.encoders.tiled import TiledEncoder
from tests.hosts.transformers.checkpoints import PICTURES, save
from tests.hosts.transformers.outputs import row_by_row
from tests.hosts.transformers.test_encoders import CPU, config_of, record_of
from tests.hosts.transformers.test_language import DTYPES
from tests.hosts.transformers.test_language_pictures import TILED, Asked, World
from tests.hosts.transformers.test_language_service import RESTART_S
from tests.hosts.transformers.test_language_service import config_of as language_config_of
from tests.hosts.transformers.test_tiles import screen
from tests.integration.processes import eventually, retryably, role_pids, stats_of

pytestmark = pytest.mark.usefixtures("one_thread")

NUM_TILES = 5
"""Of a square screen: four, and the overview."""
NUM_CHANGED = 2
"""The tile that has changed, and the overview."""


def tiled_config(folder: Path, **settings: Any) -> ServiceConfig:
    return config_of(folder, caches_tiles=True, **settings)


def file_of(image: Image.Image) -> bytes:
    file = BytesIO()
    image.save(file, "PNG")
    return file.getvalue()


BEFORE, AFTER = file_of(screen()), file_of(screen(changed=True))
ELSEWHERE = file_of(screen(changed=True, quarter=0))
BLANK = file_of(Image.new("RGB", (224, 224), "white"))


def tiles_alone(folder: Path, file: bytes, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    """Return the embeddings of a picture, of each tile as Transformers gives them for the tile alone."""
    processor = transformers.AutoImageProcessor.from_pretrained(folder)
    inputs = processor(images=Image.open(BytesIO(file)).convert("RGB"), return_tensors="pt")
    config = transformers.AutoConfig.from_pretrained(folder)
    model = getattr(transformers, config.architectures[0]).from_pretrained(folder, dtype=dtype).eval()
    if "image_sizes" in inputs:
        with torch.no_grad(), row_by_row(model.model):
            packed: torch.Tensor = model.get_image_features(**inputs, return_dict=True).pooler_output[0]
        return packed
    if "pixel_attention_mask" in inputs:
        pixels, mask = (inputs[name].split(1, 1) for name in ("pixel_values", "pixel_attention_mask"))
        tiles = [{"pixel_values": one, "pixel_attention_mask": of} for one, of in zip(pixels, mask, strict=True)]
    else:
        tiles = [{"pixel_values": one} for one in inputs["pixel_values"].split(1)]
    with torch.no_grad():
        return torch.cat([model.get_image_features(**tile, return_dict=True).pooler_output[0] for tile in tiles])


def worker_of(client: Client) -> WorkerStats:
    return client.stats().engines[0].workers[0]


class Counting:
    """Counts the tiles that a service has encoded and reused since the last look."""

    def __init__(self, client: Client) -> None:
        self._client = client
        self._before = worker_of(client)

    def more(self, num_items: int = 1) -> tuple[int, int]:
        """Return how many more tiles were encoded and reused, once as many more items and their tiles are saved."""
        before = self._before

        def are_saved(now: WorkerStats) -> bool:
            num_saved = now.outputs_saved + now.outputs_refused - before.outputs_saved - before.outputs_refused
            num_tiles = now.tiles_encoded - before.tiles_encoded
            return now.items_encoded - before.items_encoded == num_items and num_saved == num_items + num_tiles

        now = self._before = eventually(lambda: worker_of(self._client), are_saved, f"{num_items} items are saved")
        return now.tiles_encoded - before.tiles_encoded, now.tiles_reused - before.tiles_reused


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("family", TILED)
def test_tiles_have_the_bits_of_transformers_for_the_tile_alone(tmp_path: Path, family: str, dtype: str) -> None:
    folder = save(family, tmp_path, DTYPES[dtype])
    encoder = TiledEncoder(config_of(folder).encoder, CPU)
    for file in (*PICTURES, BEFORE, BLANK):
        record, num_embeds = record_of(folder, file)
        (outputs,) = encoder.encode(record, num_embeds).values()
        assert torch.equal(outputs, tiles_alone(folder, file, DTYPES[dtype]))
    assert encoder.measure().form == CheckpointEncoder(config_of(folder).encoder, CPU).measure().form


def test_outputs_of_tiles_have_another_name(tmp_path: Path) -> None:
    folder = save("smolvlm", tmp_path)
    encoders = [kind(config_of(folder).encoder, CPU) for kind in (CheckpointEncoder, TiledEncoder)]
    assert [encoder.rows["batching"] for encoder in encoders] == ["alone", "tiles"]
    assert all(is_exact(encoder.rows) for encoder in encoders)
    assert len({encoder.fingerprint for encoder in encoders}) == 2


@pytest.mark.parametrize("family", ["smolvlm", "idefics3"])
def test_a_tile_of_zeros(tmp_path: Path, family: str) -> None:
    """Transformers takes it for padding: SmolVLM encodes it nevertheless if it is alone, Idefics 3 never."""
    folder = save(family, tmp_path)
    encoder = TiledEncoder(config_of(folder).encoder, CPU)
    record, num_embeds = record_of(folder, BEFORE)
    record["pixel_values"] = record["pixel_values"].clone()
    record["pixel_values"][:, 1] = 0
    if family == "idefics3":
        with pytest.raises(InvalidRequest, match="a tile of zeros"):
            encoder.encode(record, num_embeds)
        return
    (outputs,) = encoder.encode(record, num_embeds).values()
    model = transformers.SmolVLMForConditionalGeneration.from_pretrained(folder).eval()
    one, mask = (record[name][:, 1:2] for name in ("pixel_values", "pixel_attention_mask"))
    with torch.no_grad():
        alone = model.get_image_features(one, pixel_attention_mask=mask, return_dict=True).pooler_output[0]
    assert torch.equal(outputs[len(alone) : 2 * len(alone)], alone)


@pytest.mark.parametrize("family", TILED)
def test_a_service_encodes_the_tiles_that_have_changed(run_dir: Path, tmp_path: Path, family: str) -> None:
    folder = save(family, tmp_path / "checkpoint")
    wanted = {file: tiles_alone(folder, file) for file in (BEFORE, AFTER, BLANK, ELSEWHERE)}
    with (
        ChildService(run_dir, tiled_config(folder), tmp_path / "config.json") as service,
        Client(run_dir) as client,
        Client(run_dir, tenant="other") as other,
    ):
        counting = Counting(client)

        def ask(file: bytes, of: Client = client, num_items: int = 1) -> tuple[int, int]:
            found: Any = eventually(lambda: retryably(lambda: of.encode([file])), bool, "an answer")
            assert torch.equal(found[0], wanted[file])
            return counting.more(num_items)

        assert ask(BEFORE) == (NUM_TILES, 0)
        assert ask(BEFORE, num_items=0) == (0, 0)
        assert ask(AFTER) == (NUM_CHANGED, NUM_TILES - NUM_CHANGED)
        assert ask(BLANK) == (1, NUM_TILES - 1)
        assert ask(AFTER, other) == (NUM_TILES, 0), "another tenant finds nothing"
        tiles = [key for key in client.keys("encoder/*") if key.split("/")[2] == "tile"]
        assert len(tiles) == NUM_TILES + NUM_CHANGED + 1
        client.flush()
        assert ask(AFTER) == (NUM_TILES, 0)
        os.kill(role_pids(service.process.pid)["frontend"][0], signal.SIGKILL)
        assert ask(BEFORE) == (NUM_CHANGED, NUM_TILES - NUM_CHANGED), "the next frontend adopts the tiles"
        client.verify(1.0)
        assert ask(ELSEWHERE) == (NUM_TILES, 0), "known tiles are encoded again"
        num_known = NUM_TILES - NUM_CHANGED
        found = eventually(lambda: stats_of(run_dir).store, lambda now: now.verified == num_known, "compared")
        assert found.different == 0


@pytest.mark.parametrize("family", TILED)
def test_answers_are_those_of_transformers(run_dir: Path, tmp_path: Path, family: str) -> None:
    world = World(tmp_path / "checkpoint", family, files=[PICTURES[0], PICTURES[1], BEFORE, AFTER])
    encoder = {"kind": "hf", "path": str(world.folder), "caches_tiles": True}
    prompt = [*range(3, 40), 500, 7, 500, 9]
    with (
        ChildService(run_dir, language_config_of(world.folder, encoder=encoder), tmp_path / "config.json"),
        Client(run_dir, timeout_s=RESTART_S) as client,
    ):
        counting = Counting(client)
        for numbers, num_items in (([0, 2], 2), ([1, 3], 2), ([0, 3], 0), ([3, 2], 0)):
            answer = client.generate(prompt, [world.files[number] for number in numbers], max_tokens=8)
            assert answer.tokens == world.alone(Asked(prompt, numbers), 8)[0]
            _, num_reused = counting.more(num_items)
            assert (num_reused >= NUM_TILES - NUM_CHANGED) == (3 in numbers and num_items > 0)
