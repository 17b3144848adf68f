"""The gateway: accepts images, clips and prompts, and has engines compute the missing results.

    gateway.py     messages of clients and engines; implements `mmcached.frontend.mount.Gateway`; start here
    requests/      a generation or an embedding, from request to answer
    engines/       the engines: attaching, probes, flushes, routing
    caches/        processor caches, one for each mode, and how items travel
    processing/    hashing, decoding in processes, patches, prompts

Runs in the frontend's process and thread, mounted on its loop. Does not import torch.
"""
