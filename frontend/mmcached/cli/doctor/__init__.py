"""`mmcached doctor`: what this host gives, what a service here needs, and how to fix what is missing.

finding    a finding, and what a check is given
memory     /dev/shm, memory limits, what the dead have left
kernel     locks, atomics, confinement, pages, clock
nurseries  whether clients get one, and why not
resources  descriptors, locked memory, cores, torch and CUDA
service    the run directory, versions, a real round trip, a real request
second_level  the server behind several hosts, if there is one
checkup    the table of all checks, and their run
start_checks  those that a start runs first
command    the verb
"""
