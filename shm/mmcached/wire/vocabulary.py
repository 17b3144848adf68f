"""The token ids of the reference model: the 256 bytes, then a few specials. Frontend and worker must agree on them."""

from __future__ import annotations

BEGIN_TOKEN_ID = 256
END_TOKEN_ID = 257
IMAGE_TOKEN_ID = 258
"""In a prompt: one per image. In what the engine computes: one per embedding of that image."""
VOCABULARY_SIZE = 259
IMAGE_MARKER = "<image>"
