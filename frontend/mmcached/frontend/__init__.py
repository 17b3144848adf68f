"""P0: what happens to a request before an engine sees it, and the one process per host in which it happens.

    hasher        content keys, from the encoded bytes
    images        files to RGB, or a typed error
    processor     RGB to patches
    prompt        text to tokens, markers to placeholders
    sender_cache  processed items in the ring
    factories     which cache a configuration asks for
    server        the process: clients on one side, engines on the other

Imports no torch.
"""

from mmcached.frontend.factories import processor_cache_from_config
from mmcached.frontend.hasher import MultiModalHasher
from mmcached.frontend.processor import ImageProcessor
from mmcached.frontend.sender_cache import ShmObjectStoreSenderCache

__all__ = ["ImageProcessor", "MultiModalHasher", "ShmObjectStoreSenderCache", "processor_cache_from_config"]
