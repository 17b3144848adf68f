"""`mmcached ray`: services and encoders, placed on a Ray cluster.

    command         the verbs up, down and status
    placed_config   what is to be placed, read from a YAML file
    placement       places it, looks at it, and takes it away
    service_actor   one service, run by an actor on its node

Ray is imported by the functions that need it.
"""
