"""`mmcached demo`: real photographs, several users, two engines; all caches on, after kills, all off; one proof.

run        starts both services and drives them
workload   who asks what, and when
photos     the photographs
clips      the film and the sound
killing    a frontend and engines that die in the middle
report     the tables
towers     the photographs twice through a user's checkpoint: `mmcached demo --encoder DIR`
"""
