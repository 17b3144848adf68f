"""Studies: each answers a question for a page or a decision record; none has a peer to keep up with.

eviction         what the store keeps, refuses and spends on a place, beside other policies: decisions 042, 074, 078.
                 `policies`, `traces`, `eviction_clips`, `eviction_costs` are its parts
compose_trace    a multimodal trace from a stated law and recorded arrivals: docs/traces.md
seconds          what eviction policies save in seconds: docs/benchmarks.md
replay           the hit rate of a recorded service by pool size: `python -m scripts.studies.replay TRACE`
fleet            the same for several engines, by routing policy: `python -m scripts.studies.fleet TRACE`
simulate_fleet   what a second level is worth to a fleet: docs/fleet.md
libzmq           what a ROUTER of libzmq would keep of the promises of SECURITY.md, beside our listener: decision 025
sizing           how large a service has to be: docs/sizing.md
gpu              from shared memory to a CUDA device: decision 062. All of it with the tests, in one call: `gpu_all`
"""
