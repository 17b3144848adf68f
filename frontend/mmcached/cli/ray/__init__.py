"""`mmcached ray`: services and encoders on a Ray cluster.

    command         the commands up, down and status
    placed_config   the YAML file that describes the placement
    placement       places actors, reports on them, and removes them
    service_actor   an actor that runs one service on its node

Ray is imported by the functions that need it.
"""
