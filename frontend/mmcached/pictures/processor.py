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


TOKENIZER = "tokenizer.json"
_MARK = "<image>"


class PictureProcessor:
    """The processor of one folder; loading takes seconds, because it imports Transformers and torch.

    One that can cut an image into tiles does it, whatever its file says, as `InternVLProcessor` has it do.

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
        has_tiles = hasattr(self._processor, "return_row_col_info") and (folder / TOKENIZER).exists()
        self._tile_tokens = TileTokens(folder) if has_tiles else None
        self._more = {"return_row_col_info": True} if has_tiles else {}
        if hasattr(self._processor, "crop_to_patches"):
            self._more["crop_to_patches"] = True

    def tensors(self, picture: Image.Image) -> dict[str, npt.NDArray[np.generic]]:
        """Return the processor's tensors for an image in mode RGB, by name, C-contiguous.

        Of an image in tiles also `tokens`, if the folder has a tokenizer.
        """
        made: dict[str, Any] = self._processor(images=picture, return_tensors="pt", **self._more)
        arrays = {name: value.contiguous().numpy() for name, value in made.items() if hasattr(value, "numpy")}
        if self._tile_tokens is not None:
            arrays["tokens"] = self._tile_tokens.of(made["rows"][0][0], made["cols"][0][0])
        return arrays


class TileTokens:
    """Tokens of an image in a prompt of SmolVLM or Idefics 3, as its processor puts them there: tiles and text."""

    def __init__(self, folder: Path) -> None:
        from tokenizers import Tokenizer
        from transformers import AutoConfig
        from transformers.models.smolvlm.processing_smolvlm import get_image_prompt_string

        self._text_of = get_image_prompt_string
        self._tokenizer = Tokenizer.from_file(str(folder / TOKENIZER))
        self._tokenizer.no_padding()
        self._tokenizer.no_truncation()
        config = AutoConfig.from_pretrained(folder, local_files_only=True)
        side = config.vision_config.image_size // config.vision_config.patch_size
        self._per_tile = side**2 // config.scale_factor**2

    def of(self, rows: int, columns: int) -> npt.NDArray[np.int64]:
        """Return the tokens of an image in this many rows and columns of tiles, -1 for embeddings; of one, 0 and 0."""
        import numpy as np

        text = self._text_of(rows, columns, self._per_tile, "<fake_token_around_image>", _MARK, "<global-img>")
        tokens = np.array(self._tokenizer.encode(text, add_special_tokens=False).ids, np.int64)
        tokens[tokens == self._tokenizer.token_to_id(_MARK)] = -1
        return tokens
