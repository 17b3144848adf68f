"""Lets SGLang share embeddings and preprocessed media over processes and restarts.

    plugin            registers the configured parts in a process of SGLang; does nothing without configuration
    settings          reads the environment
    identity          the fingerprint of SGLang's embeddings, and their expected form
    contact           logs to SGLang's log whether the service answers
    buffers           copies records out of and into the host's memory, for encoder servers
    embedding_store   the same, as SGLang's store of embeddings
    engine_cache      SGLang's embedding cache of an engine, with `tensors` behind it
    engine_name       the name of an engine's embeddings, from the weights that its ranks have
    processed_inputs  what SGLang's processor makes of pictures, before the ranks of an engine get it
    children          the plugin in the processes that an encoder server starts

    main ──load_plugins──> register ──┬─ embedding_store ──> the backend "mooncake" is `embedding_store`
                                      ├─ engine_cache ─────> hooks: the cache is `engine_cache`; a flush reaches it
                                      └─ processed_inputs ─> hook: the processor's cache has the store behind it

SGLang loads `register` in its processes, by the entry point group `sglang.srt.plugins`. It imports neither SGLang nor
torch unless a part is configured.
"""

from mmcached.integrations.sglang.plugin import register

__all__ = ["register"]
