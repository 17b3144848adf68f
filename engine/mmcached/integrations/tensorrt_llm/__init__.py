"""Lets TensorRT-LLM share the outputs of its vision and audio encoders over processes and restarts.

    plugin          installs the adapter in a process, before TensorRT-LLM makes its model
    encoder_cache   the store behind the encoder cache of one model in one rank
    model           what is in a name of outputs: weights, settings, device; the form of an output
    ranks           exchanges of the tensor-parallel ranks of one model

    sitecustomize ──install──> MultimodalModelMixin is imported ──> the getter of its encoder cache is wrapped
    first call of the getter ──> TensorRT-LLM's own cache, whose `get` and `put` go on to the store

TensorRT-LLM loads no plugins, so the user calls `install` in each of its processes. Nothing of TensorRT-LLM is imported
by that.
"""

from mmcached.integrations.tensorrt_llm.plugin import install

__all__ = ["install"]
