"""`mmcached demo`: the cost of a photograph, and conversations with all caches on, after kills and off, compared.

run         runs the stages                           cost        the time of one photograph
workload    the conversations                         photos      the photographs
clips       the film and the sound                    killing     kills the frontend and the engines
report      the final lines                           stages      a bar or a line for each stage
prompts     their token ids                           checkpoint   a user's: `mmcached demo --model DIR`
towers      a user's tower: `mmcached demo --encoder DIR`
vllm_run    two vLLM servers beside a store: `mmcached demo --vllm`
vllm_server, random_checkpoint    a vLLM server, and its model unless the user names one
"""
