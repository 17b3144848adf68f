"""`mmcached serve`: one supervisor starts the roles, restarts what dies, and ends them in order.

supervisor      the parent of all roles
role_group      all roles of a service: starting, restarting, ending
engine_group    one engine with its workers
roles           one role: its command, its process, its deaths
restarts        when a dead role is started again
watchdog        finds roles that live and do nothing
first_request   what has to go through before the service is ready
orphans         reaps what a killed role leaves, where we are PID 1
seat            the lock on the run directory
service_manager tells systemd how the service is
shm_room        checks that the rings fit into /dev/shm
pidfd           descriptors of processes
child_service   a whole service as a child process
"""
