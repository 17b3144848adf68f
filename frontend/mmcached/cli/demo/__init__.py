"""`mmcached demo`: the cost of a photograph, and conversations with all caches on, after kills and off, compared
bitwise.

run        starts both services and runs the stages
cost       the time of one photograph: new, cached in each process, after each kill
workload   the conversations
photos     the photographs
clips      the film and the sound
killing    kills the frontend and the engines
report     the final lines
stages     a bar or a line for each stage
towers     the photographs twice through a user's checkpoint: `mmcached demo --encoder DIR`
vllm_run   two vLLM servers beside a store: `mmcached demo --vllm`
vllm_server         one vLLM server
random_checkpoint   their model, unless the user names one
"""
