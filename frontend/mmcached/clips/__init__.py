"""Decoders make slices of a clip, a video or a sound, in processes that can be killed.

    frame_sizes how large frames are for a checkpoint's encoder
    versions    names the libraries that decode, without importing them
    settings    what every decoder of a service is told
    containers  looks what a file is, before a library does
    edit_lists  which parts of an MP4 file's video are shown
    in_place    reads a file where it lies
    sampling    which frames are taken, where a sound is cut
    video       file -> pairs of frames, RGB, upright, scaled
    audio       file -> windows of samples, mono, 16,000 a second
    messages    what frontend and decoder tell each other
    decoder     the process: `python -m mmcached.clips.decoder`

Imports OpenCV where videos are decoded, soundfile and scipy where sounds are: neither torch nor zmq. Knows nothing of
caches, requests or clients.
"""
