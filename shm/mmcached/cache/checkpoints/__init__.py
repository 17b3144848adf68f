"""A checkpoint's encoders, as described by its small files: their inputs, and the number of an item's embeddings.

    checkpoint     the folder: configuration, processors, and why it cannot be served
    architectures  the known classes of models, their modalities, and how embeddings are counted
    counting       ways of counting the embeddings of an image
    frames         the same for frames of a video, and their size
    sounds         the same for windows of a sound, and their length

Imports neither torch nor Transformers: frontend and engine count embeddings, and never load a model.
"""
