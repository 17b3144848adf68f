"""Plain models of the product, slow and easy to believe: `kv_model` is the specification of the KV cache manager."""
