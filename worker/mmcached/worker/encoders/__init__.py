"""Encoders: the record of one item -> its outputs, named tensors of that item alone.

    encoder      the protocol
    reference    the reference model's encoder, in exact integers
    checkpoint   the encoder of a local checkpoint
    making       creates the configured encoder
    remote       sends items to actors, perhaps on other hosts, each to the least loaded
    actor_table  the actors that answer, and their load
    pieces       splits small payloads into the messages of a call
    ray_actors   finds and calls actors on a Ray cluster
    tower        loads and calls the towers of a checkpoint
    pixels       normalizes the colours of frames
    examples     small items of each modality, to measure outputs
    families     known Transformers models: their image inputs and outputs
    weights      digest of a vision tower's weights, and change detection
    content      digests of tensors, images and plain values

Importing these modules imports neither Transformers nor Ray.
"""
