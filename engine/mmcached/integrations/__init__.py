"""Adapters that let host programs share model outputs through the store; each folder belongs to one host program.

    identity          the content of a checkpoint, as a digest
    ranks             agreement of an engine's ranks on what they load
    encoding_time     an encoder's time, by the items that it has encoded together
    record_form       checks the tensors of a record before a model gets them
    shared_embeddings one engine's embeddings in the store, of one tensor each
    watched_writes    notices writes to a tower that its process makes without a call
    method_code       names in the code of a model's methods
    tensor_parts      the plain tensors of one that a quantiser has packed
    vllm/             encoder outputs of all engines of a host, for vLLM
    sglang/           the same for SGLang's encoder servers, and a second level of its engines' caches
    tensorrt_llm/     encoder outputs behind the encoder cache of TensorRT-LLM's models
    lmdeploy/         image features of LMDeploy's TurboMind engine
    after_import      changes a module of a host that loads no plugins, when it is imported
    transformers/     image features and processed images, once per host
    processed_inputs/ processed items for render servers
    ray/              encoders as actors on a Ray cluster, called by a service's workers
    environment       packages and environment variables that decide the bits of an output, for all adapters
    embedding_width   width of an encoder output's row, for hosts that do not measure it

An adapter imports its host only when it is itself imported. It imports nothing of the service (except `ray`, which is
part of it) and is a client like any other. It promises: a miss costs about nothing; a save never makes the host wait;
an absent, full, dead or incompatible service is a miss.
"""
