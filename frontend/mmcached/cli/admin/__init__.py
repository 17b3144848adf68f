"""Commands that inspect a running service and end it.

verbs         ping, status, top, shm, drain, flush    info         all facts and figures, as name:value
store_verbs   keys and inspect                        records      a store's records, from shared memory
client_locks  live clients of a run directory         versions     of the command and the service
observe       finds a running service                 shm_list     shared-memory segments of this user
printing      output common to all commands
"""
