"""Settings of a service, from four layers.

settings    merges the layers                         fields      the settings, and their names in each layer
arguments   settings as flags                         units       sizes and durations with a unit
texts       description of each setting               show        `mmcached config show`
init        `mmcached config init`                    toml        formats one value as TOML
completion  shell completion of the flags
"""
