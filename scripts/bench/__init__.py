"""Benchmarks: each figure is a ratio against a peer, or against a physical limit, measured in the same run.

`python -m scripts.bench.AREA [--only SECTION …] [--quick] [--json]`; an area is one of

ring            puts, hits, laps, copies, hops, growth     processes, drivers, ours, peers: `ring_*`
caches          hashing, processor caches, decoders        processing
kv              the KV cache manager                       kv_samplers, sides, texts
scheduler       the scheduler and its encoder books        scheduler_steps, sides
prefix          hidden states of prefixes                  prefix_sides
sidecar         a client's hits beside Redis, its puts, other stores      processes, looks, restart: `sidecar_*`, stores
costs           what the cost of a record adds to its put
encode          how often an image is encoded, how its embedding travels, what one-use images cost     encode_travel
names           pictures by name: to the engine's input, an answer, many at once for a new URL
media           a film or a sound that came before, whole or in part; new ones        media_files
second_level    Redis as a second level, beside redis-py and a bare socket; Mooncake Store, beside its own client
second_level_hosts      two services with a Redis between them, beside one without; fleets    fleet, pins, services
miss_tax        what a store costs where 98 % of the pictures come once: a service, vLLM
adapters        vLLM's servers with and without the adapter, and its connector     adapters_steps
identity        a tower known by its weights, in vLLM
adapters_transformers   a model of Transformers, and an image processor, with and without the adapter
adapters_diffusers      text encoders and VAE encodes of a pipeline of diffusers, with and without the adapter
adapters_sglang         what SGLang does for a picture, with shared processed inputs and without
adapters_engines        a new picture, and a known one, in engines of SGLang, LMDeploy and TensorRT-LLM's mixin
adapters_stages         the text stage of SGLang's diffusion servers, with and without the store
service_tiles   screenshots, new and changed in one place, in a service that caches tiles, beside one that does not
language        first tokens and tokens per second of checkpoints behind `generate`, beside Transformers' own batching
ray             an image encoded by an actor on another node
flood           a client's cheapest call beside a flood
idle            what a service at rest costs, and its start

harness         the command line, the clock, the table, the bounds
peers           makes vLLM's and vllm-omni's modules importable, runs Redis

A peer that is not installed leaves its rows out and says so: `make bench-peers` installs them. Without the package
that an area is about, it says which extra to install, and ends with status 3.
"""
