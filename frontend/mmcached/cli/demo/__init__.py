"""`mmcached demo`: what a photograph costs, conversations with all caches on, after kills and off, compared bit by bit.

run        starts both services and runs the stages
cost       the time of one photograph: new, known to each process, after each kill
workload   the conversations
photos     the photographs
clips      the film and the sound
killing    kills the frontend and the engines
report     the last lines
towers     the photographs twice through a user's checkpoint: `mmcached demo --encoder DIR`
"""
