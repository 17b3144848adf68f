"""Settings of a service, out of four layers.

settings    merges the layers
fields      what can be set, and its name in each layer
arguments   settings as flags
units       sizes and durations with a unit
texts       what each setting is for
show        `mmcached config show`
init        `mmcached config init`
toml        one value as TOML has it
completion  the flags of settings, as a shell completes them
"""
