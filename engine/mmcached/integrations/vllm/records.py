"""Encodes encoder outputs as records, and validates records for a model.

{"embeds": tensor}      (rows, width); DeepStack levels are part of the width

Further entries of a record are ignored.
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
    return {EMBEDS: output}


def mismatch(record: Mapping[str, Any], form: PartForm) -> str | None:
    """Return why a record does not fit the model; None if it fits.

    Args:
        form: Rows and width of the item, and the dtype that the model computes in. float32 fits too: vLLM rounds it
            like the output of a tower that computes in float32.
    """
    import torch

    embeds = record.get(EMBEDS)
    if isinstance(embeds, torch.Tensor) and embeds.dtype == torch.float32:
        form = replace(form, dtype=torch.float32)
    return form.check(embeds)
