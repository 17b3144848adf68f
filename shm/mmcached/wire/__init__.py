"""Words that two processes share: messages, channels, errors, configuration, names of bytes in a ring.

Knows nothing of tensors, caches or shared memory; imports neither torch nor numpy.
"""

from mmcached.wire.config import ModelConfig, ServiceConfig
from mmcached.wire.errors import MmcachedError
from mmcached.wire.handle import Handle, LeaseId, RingAnnouncement
from mmcached.wire.paths import RunDir, default_run_dir

__all__ = [
    "Handle",
    "LeaseId",
    "MmcachedError",
    "ModelConfig",
    "RingAnnouncement",
    "RunDir",
    "ServiceConfig",
    "default_run_dir",
]
