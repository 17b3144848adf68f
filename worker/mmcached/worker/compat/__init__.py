"""Programs without the service find here the worker's receiver cache, with vLLM's name.

receiver      reads items in place, under leases of its own
taken_leases  the leases that it has read under

Native code imports none of it.
"""
