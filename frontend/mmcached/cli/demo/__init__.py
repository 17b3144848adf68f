"""`mmcached demo`: what a photograph costs, conversations with all caches on, after kills and off, compared bit by bit.

run        starts both services and runs the stages
cost       the time of one photograph: new, known to each process, after each kill
workload   the conversations
photos     the photographs
clips      the film and the sound
killing    kills the frontend and the engines
report     the last lines
stages     a bar or a line for each stage
towers     the photographs twice through a user's checkpoint: `mmcached demo --encoder DIR`
vllm_run   two vLLM servers beside a store: `mmcached demo --vllm`
vllm_server         one of them
random_checkpoint   their model, unless the user names one
"""
