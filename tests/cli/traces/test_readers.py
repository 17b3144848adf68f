"""Each format is told apart by its first line, and read into the same arrays."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from mmcached.cli.traces.readers import Assumed, read_uses
from mmcached.wire.errors import ConfigError
from scripts.studies.compose_trace import arrivals, compose
from scripts.studies.simulate_fleet.requests import Load

ASSUMED = Assumed(nbytes=1000, cost_s=0.5)
OWN = """{"t": 10.5, "key": "a", "bytes": 100, "cost_s": 2, "modality": "audio"}

{"t": 12, "key": "b"}
{"t": 11, "key": "a"}
"""
SERVEGEN = """{"request_id": 0, "type": "multimodal", "input_length": 446, "hash_ids": [7, 8], "img_ids": ["x", "y"]}
{"request_id": 1, "type": "multimodal", "input_length": 420, "hash_ids": [7], "img_ids": ["x"]}
"""
BAILIAN = """{"chat_id": 5, "parent_chat_id": -1, "timestamp": 1.0, "type": "image", "turn": 1, "hash_ids": [1]}
{"chat_id": 6, "parent_chat_id": -1, "timestamp": 2.0, "type": "text", "turn": 1, "hash_ids": [2]}
{"chat_id": 7, "parent_chat_id": 5, "timestamp": 3.0, "type": "image", "turn": 2, "hash_ids": [1, 3]}
{"chat_id": 8, "parent_chat_id": 7, "timestamp": 4.5, "type": "image", "turn": 3, "hash_ids": [1, 3]}
{"chat_id": 9, "parent_chat_id": -1, "timestamp": 5.0, "type": "image", "turn": 1, "hash_ids": [1, 3]}
"""
MOONCAKE = """{"timestamp": 0, "input_length": 600, "output_length": 3, "hash_ids": [3, 4]}
{"timestamp": 3000, "input_length": 600, "output_length": 3, "hash_ids": [3, 9]}
"""


def written(folder: Path, text: str) -> Path:
    path = folder / "trace.jsonl"
    path.write_text(text)
    return path


@pytest.mark.parametrize(
    ("text", "keys", "times_s", "modality"),
    [
        (OWN, [0, 0, 1], [0, 0.5, 1.5], "audio"),
        (SERVEGEN, [0, 1, 0], None, "image"),
        (BAILIAN, [0, 0, 0, 1], [0, 2, 3.5, 4], "image"),
        (MOONCAKE, [0, 1, 0, 2], [0, 0, 3, 3], "prompt block"),
    ],
)
def test_formats(tmp_path: Path, text: str, keys: list[int], times_s: list[float] | None, modality: str) -> None:
    trace = read_uses(written(tmp_path, text), ASSUMED)
    assert trace.keys.tolist() == keys
    assert (None if trace.times_s is None else trace.times_s.tolist()) == times_s
    assert trace.modalities[0] == modality


def test_what_a_line_says_comes_before_what_is_assumed(tmp_path: Path) -> None:
    trace = read_uses(written(tmp_path, OWN), ASSUMED)
    assert trace.sizes.tolist() == [128, 1024], "rounded up to the alignment"
    assert trace.costs_s.tolist() == [2, 0.5]
    assert trace.total_s == 4.5
    assert trace.most_found == pytest.approx(1 / 3)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "has no uses"),
        ('{"t": 1}', ":1.*none of the fields"),
        ("[1]", ":1"),
        (OWN + "{", ":5"),
        ('{"key": "a", "bytes": 0}', "bytes is 0"),
        ('{"key": "a", "bytes": "big"}', "bytes is 'big'"),
        ('{"key": "a", "cost_s": -1}', "cost_s is -1"),
        ('{"key": 1}', "key and modality must be text"),
        ('{"chat_id": 1}', "parent_chat_id"),
        ('{"hash_ids": 5}', "not iterable"),
    ],
)
def test_an_invalid_file_is_refused_with_its_line(tmp_path: Path, text: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        read_uses(written(tmp_path, text))


def test_a_missing_file_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="No such file"):
        read_uses(tmp_path / "missing")


@pytest.mark.parametrize("text", [OWN, SERVEGEN])
def test_another_rate_changes_only_the_times(tmp_path: Path, text: str) -> None:
    trace = read_uses(written(tmp_path, text))
    faster = trace.at_rate(100)
    assert faster.keys is trace.keys
    assert faster.times_s is not None
    assert faster.times_s[0] == 0
    assert np.all(np.diff(faster.times_s) >= 0)


def test_a_composed_trace_has_the_arrivals_of_the_service_and_is_the_same_each_time(tmp_path: Path) -> None:
    recorded = written(tmp_path, "".join(f'{{"timestamp": {1000 * number}}}\n' for number in (5, 6, 8, 12)))
    load = Load(hosts=1, pictures=10)
    lines = compose(3, arrivals(recorded), 1, load)
    assert [line["t"] for line in lines] == [0, 1, 3]
    assert lines == compose(3, arrivals(recorded), 1, load)
    (tmp_path / "azure.csv").write_text(
        "TIMESTAMP,ContextTokens\n2023-11-16 18:15:46.6805900,374\n2023-11-16 18:15:47.1805900,3\n"
    )
    assert arrivals(tmp_path / "azure.csv").tolist() == pytest.approx([0, 0.5])
