"""Lets SGLang share embeddings: encoder servers by a store, engines by a second level behind their own cache.

    plugin            registers in a process of SGLang what the environment asks for; nothing is asked, nothing is done
    settings          reads the environment
    identity          names what SGLang's embeddings depend on, and says what they look like
    contact           says in SGLang's log whether embeddings are shared
    buffers           records that are copied out of and into the host's memory, for encoder servers
    embedding_store   the same, as SGLang's store of embeddings
    tensors           records of one tensor each, for engines
    engine_cache      SGLang's embedding cache of an engine, with `tensors` behind it
    children          the plugin in the processes that an encoder server starts

    main ──load_plugins──> register ──┬─ embedding_store ──> the backend "mooncake" is `embedding_store`
                                      └─ engine_cache ─────> hooks: the cache is `engine_cache`; a flush reaches it

SGLang loads `register` in its processes, by the entry point group `sglang.srt.plugins`. It imports neither SGLang nor
torch unless it is asked for something.
"""

from mmcached.integrations.sglang.plugin import register

__all__ = ["register"]
