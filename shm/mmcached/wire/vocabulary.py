"""The token ids of the reference model: the 256 bytes, then a few special ones. Frontend and worker must agree."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

BEGIN_TOKEN_ID = 256
END_TOKEN_ID = 257
IMAGE_TOKEN_ID = 258
"""In a prompt: one per image. In the engine's input: one per embedding of that image. The same for the next two."""
VIDEO_TOKEN_ID = 259
AUDIO_TOKEN_ID = 260
VOCABULARY_SIZE = 261

Modality = Literal["image", "video", "audio"]
MODALITIES: tuple[Modality, ...] = ("image", "video", "audio")
TOKEN_IDS: Mapping[Modality, int] = {"image": IMAGE_TOKEN_ID, "video": VIDEO_TOKEN_ID, "audio": AUDIO_TOKEN_ID}
MARKERS: Mapping[Modality, str] = {modality: f"<{modality}>" for modality in MODALITIES}
"""The markers of items in the text of a prompt."""
