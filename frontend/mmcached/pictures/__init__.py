"""Decoders make a few scaled pixels of an image file, in processes that can be killed.

    settings    what every decoder of a service is told
    structure   counts a file's parts before anything is decoded
    processor   the image processor of a checkpoint, where a service has one
    images      file -> RGB, upright, scaled
    grid        how many patches a picture gets
    messages    what frontend and decoder tell each other
    loop        what a decoder of any kind does with messages
    decoder     the process: `python -m mmcached.pictures.decoder`
    confinement its limits, set by the kernel

Imports Pillow and the wire's errors, and nothing that a decoder does not need: without a checkpoint neither numpy nor
torch, and never zmq. Knows nothing of caches, requests or clients.
"""
