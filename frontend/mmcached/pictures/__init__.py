"""Decoders that turn an image file into scaled pixels, in processes that can be killed.

    settings    settings of a service's decoders
    structure   counts a file's parts before anything is decoded
    processor   the image processor of a checkpoint
    images      file -> RGB, upright, scaled
    grid        the number of patches of an image
    messages    messages between frontend and decoder
    loop        the message loop of all decoders
    decoder     the process: `python -m mmcached.pictures.decoder`
    confinement its limits, enforced by the kernel

Imports only Pillow and the wire's errors: without a checkpoint neither numpy nor torch.
"""
