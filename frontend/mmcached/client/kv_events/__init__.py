"""Changes of an engine's prefix cache, as a stream.

subscriber   `KVEventSubscriber`
order        batches in their order, live ones and repeated ones
"""
