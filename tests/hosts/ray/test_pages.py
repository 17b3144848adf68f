"""What the page about Ray shows is what the command reads."""

from __future__ import annotations

import re
from pathlib import Path

from mmcached.cli.ray.placed_config import read
from tests.docs.pages import code
from tests.house import REPOSITORY

PAGE = REPOSITORY / "docs" / "deploy" / "ray.md"


def test_the_file_is_read_and_says_everything_that_can_be_said(tmp_path: Path) -> None:
    (text,) = code(PAGE, "yaml")
    file = tmp_path / "placed.yaml"
    file.write_text(text)
    config = read(file)
    assert (config.encoders.count, config.serve.encoder.kind, config.serve.limits.remote_encode_s) == (4, "hf", 30.0)
    for section in (config, config.encoders, config.frontends):
        for name in type(section).__struct_fields__:
            assert re.search(rf"^ *{name}:", text, re.MULTILINE) or name == "resources", name
