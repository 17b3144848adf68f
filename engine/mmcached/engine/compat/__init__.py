"""Programs without the service find here the engine's classes with vLLM's names that the service itself does not run.

receiver_cache  P1's end of the mirrored processor cache, which keeps items

Native code imports none of it. Needs no torch.
"""
