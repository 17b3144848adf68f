"""Copies records out of shared memory onto a CUDA device, as fast as its bus, while the device computes.

devices        interface for adapters and workers, on CPU, CUDA or another device; also copies outputs back
loader         interface for host programs: tensors in, tensors on a CUDA device out
pinned_pages   pins the pieces of mapped rings from which records are read again
streams        the copies themselves, on a stream of their own
runtime        calls of the CUDA runtime that torch does not offer
stopwatch      times work on a device

The service takes no part: the process with the device maps the ring, pins pages and copies. Importing it imports torch.
"""

from mmcached.client.device.loader import DeviceLoader

__all__ = ["DeviceLoader"]
