"""Decoders that turn a video or sound file into slices, in processes that can be killed.

    frame_sizes size of frames for a checkpoint's encoder
    versions    versions of the decoding libraries, without importing them
    settings    settings of a service's decoders
    containers  detects a file's format before a library reads it
    edit_lists  the parts of an MP4 file's video that are shown
    in_place    reads a file in shared memory
    sampling    the sampled frames of a video, the windows of a sound
    video       file -> pairs of frames, RGB, upright, scaled
    audio       file -> windows of samples, mono, 16,000 a second
    messages    messages between frontend and decoder
    decoder     the process: `python -m mmcached.clips.decoder`

Imports OpenCV where videos are decoded, soundfile and scipy where sounds are: not torch.
"""
