"""Runs a checkpoint's image processor on one decoded image. Importing it imports neither numpy nor Transformers.

Its results equal those of `AutoImageProcessor.from_pretrained(folder)` for that image alone.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

from PIL import Image

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt


class PictureProcessor:
    """The processor of one folder; loading takes seconds, because it imports Transformers and torch.

    Raises:
        OSError, ValueError: It cannot be loaded.
    """

    def __init__(self, folder: Path) -> None:
        os.environ["HF_HUB_OFFLINE"] = "1"
        import torch
        import transformers

        torch.set_grad_enabled(False)
        transformers.logging.set_verbosity_error()
        self._processor = transformers.AutoImageProcessor.from_pretrained(folder, local_files_only=True)

    def tensors(self, picture: Image.Image) -> dict[str, npt.NDArray[np.generic]]:
        """Return the processor's tensors for an image in mode RGB, by name, C-contiguous."""
        made: dict[str, Any] = self._processor(images=picture, return_tensors="pt")
        return {name: value.contiguous().numpy() for name, value in made.items() if hasattr(value, "numpy")}
