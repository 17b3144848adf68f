"""An encoder turns the record of one item into its outputs: named tensors, of that item alone.

    encoder     what the worker asks of any of them
    reference   the reference model's, in exact integers
    checkpoint  a local checkpoint's
    making      chooses one of them, as a configuration says
    remote      asks actors, perhaps on other hosts, each item of the least loaded
    actor_table     which actors answer, and what each has to do
    pieces      what is small travels in the messages of a call
    ray_actors      finds and calls them on a Ray cluster
    tower       loads the towers of a checkpoint, and asks them
    pixels      normalises the colours of frames
    examples    small items of each modality, to see what they give
    families    which models of Transformers are known: how they take images, and what they return for them
    weights     names the content of a vision tower, and notices when that changes
    content     digests of tensors, images and plain values

Importing none of them imports Transformers or Ray.
"""
