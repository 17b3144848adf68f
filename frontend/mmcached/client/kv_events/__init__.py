"""Subscription to the changes of an engine's prefix cache (KV events).

subscriber   `KVEventSubscriber`
order        puts live and replayed batches in order
"""
