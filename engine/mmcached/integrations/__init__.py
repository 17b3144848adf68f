"""Lets programs that bring their own model use the store in their own words; each room belongs to one host program.

    identity          names what an output depends on: the content of a checkpoint, and all else beside the item
    record_form       checks the tensors of a record before a model gets them
    vllm/             encoder outputs of all engines of a host, for vLLM
    sglang/           the same for SGLang's encoder servers, and a second level of its engines' caches
    transformers/     image features and processed images, once per host
    processed_inputs/ processed items for render servers
    ray/              encoders as actors on a Ray cluster, which a service's workers ask
    environment       names packages and variables that decide the bits of an output, for all rooms
    embedding_width   how wide a row of an encoder output is, where a host does not measure it

A room imports its host only when it is itself imported, and nothing of the service, of which `ray` alone is a part; it
is a client like any other. Its promises: a miss costs about nothing; a save never keeps the host waiting; a service
that is absent, full, dead or of another version is a miss.
"""
