"""A checkpoint's encoders, as described by its small files: their inputs, and the number of an item's embeddings.

checkpoint  the folder: configuration, processors, errors    architectures  the known classes of models
counting    ways of counting the embeddings of an image      frames         the same for frames of a video
sounds      the same for windows of a sound

Imports neither torch nor Transformers: frontend and engine count embeddings, and never load a model.
"""
