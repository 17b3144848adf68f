"""Reads a checkpoint's small files: inputs and embeddings of its encoders, vocabulary and sizes of its model.

checkpoint  the folder: configuration, processors, errors    architectures  the known classes of models
counting    ways of counting the embeddings of an image      frames         the same for frames of a video
sounds      the same for windows of a sound                  language       the model behind `generate`
json_files  reads a file

Imports neither torch nor Transformers: frontend and engine count embeddings, and never load a model.
"""
