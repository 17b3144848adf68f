"""Turns encoder outputs into records, and says which records a model can take.

{"embeds": tensor}      (rows, width); DeepStack levels are part of the width

A record may have more than that, which is not looked at.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from mmcached.integrations.record_form import PartForm

if TYPE_CHECKING:
    import torch

EMBEDS = "embeds"


def record_of(output: torch.Tensor) -> dict[str, Any]:
    """Return the record of an output."""
    return {EMBEDS: output}


def mismatch(record: Mapping[str, Any], form: PartForm) -> str | None:
    """Return why the model cannot take a record; None if it can.

    Args:
        form: rows and width of the item, and the dtype that the model computes in. float32 is right too: vLLM rounds
            it as it rounds the output of a tower that computes in float32.
    """
    import torch

    embeds = record.get(EMBEDS)
    if isinstance(embeds, torch.Tensor) and embeds.dtype == torch.float32:
        form = replace(form, dtype=torch.float32)
    return form.check(embeds)
