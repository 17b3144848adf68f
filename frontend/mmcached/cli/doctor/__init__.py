"""`mmcached doctor`: checks this host and the service on it, and says how to fix problems.

finding    a finding, and the input of a check
memory     /dev/shm, memory limits, leftovers of dead processes
kernel     locks, atomics, confinement, pages, clock
nurseries  whether clients get one, and why not
resources  descriptors, locked memory, cores, torch and CUDA
service    the run directory, versions, a real round trip, a real request
second_level  the server behind several hosts, if there is one
names      what encoder outputs are named by
checkup    the table of all checks, and their run
start_checks  the checks that a start runs first
command    the `doctor` command
"""
