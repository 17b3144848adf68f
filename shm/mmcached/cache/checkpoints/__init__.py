"""A checkpoint's towers, as far as its small files tell: what they take, and how many embeddings an item has.

    checkpoint     the folder: configuration, processors, and why it cannot be served
    architectures  the known classes of models, the modalities of each, and how embeddings are counted
    counting       the ways of counting those of a picture
    frames         the same for frames of a video, and how large they are
    sounds         the same for windows of a sound, and how long they are

Needs neither torch nor Transformers: frontend and engine count, and never load a model.
"""
