"""`mmcached ray`: services and encoders on a Ray cluster. Ray is imported by the functions that need it.

command        the commands up, down and status        placed_config   the YAML file of the placement
placement      places, shows and removes actors        service_actor   an actor that runs one service
"""
