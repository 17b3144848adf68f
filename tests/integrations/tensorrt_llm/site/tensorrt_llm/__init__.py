"""Stands for TensorRT-LLM where its own files need a GPU, and for those that tests may replace by its own.

`_torch/tensor_lru_cache.py` and `_torch/models/modeling_multimodal_mixin.py` are the two that the adapter knows: here
they do what it relies on, and no more. All names that other modules lack exist, and are empty classes.
"""
