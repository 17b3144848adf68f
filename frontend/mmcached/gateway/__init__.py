"""The gateway: accepts images, clips and prompts, and has engines compute what the store lacks.

    requests/      a generation or an embedding, from request to answer
    engines/       the engines: attaching, leases, probes, flushes
    caches/        processor caches, one for each mode, and how items travel
    processing/    hashing, decoding in processes, patches, prompts

Start at `requests/request_service.py`. The gateway uses the store of `mmcached.frontend`. Does not import torch.
"""
