"""`mmcached demo`: real photographs, several users, all caches on and then off, one proof.

run        starts both services and drives them
workload   who asks what, and when
photos     the photographs
killing    a frontend that dies in the middle
report     the tables
towers     the photographs twice through a user's checkpoint: `mmcached demo --encoder DIR`
"""
