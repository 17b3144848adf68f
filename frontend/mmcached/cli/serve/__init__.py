"""`mmcached serve`: one supervisor starts the roles, restarts them after a death, and ends them in order.

supervisor      the parent of all roles               role_group       all roles of a service
engine_group    one engine with its workers           roles            one role: command, process, deaths
restarts        backoff of restarts                   watchdog         finds roles without heartbeats
first_request   must succeed before the ready line    orphans          reaps children of dead roles, as PID 1
seat            the lock on the run directory         service_manager  reports to systemd
shm_room        checks that rings fit into /dev/shm   pidfd            descriptors of processes
child_service   a whole service as a child process
"""
