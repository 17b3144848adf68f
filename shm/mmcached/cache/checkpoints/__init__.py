"""A checkpoint's vision part, as far as its small files tell: what it takes, and how many embeddings an item has.

    checkpoint     the folder: configuration, image processor, and why it cannot be served
    architectures  the known classes of models, and how the embeddings of an item are counted

Needs neither torch nor Transformers: frontend and engine count, and never load a model.
"""
