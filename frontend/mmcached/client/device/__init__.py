"""Copies records out of shared memory onto a CUDA device, as fast as its bus, while the device computes.

    devices        what an adapter or a worker calls, for the CPU, CUDA or another device; also copies outputs back
    loader         what a host program calls: tensors in, tensors on a CUDA device out
    pinned_pages   which pieces of the mapped rings are pinned: those from which records are read again
    streams        the copies themselves, on a stream of their own
    runtime        the calls of CUDA's runtime that torch has no word for

The service has no part in it: who has a device maps the ring, pins what it reads and copies. Importing it imports
torch.
"""

from mmcached.client.device.loader import DeviceLoader

__all__ = ["DeviceLoader"]
