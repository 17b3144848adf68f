"""Start, end and main loop of a process with a role.

death         ends a child with its parent             signals   turns a signal into a flag for the main loop
descriptors   limit of open files, complete writes     turns     keeps the main loop fair and alive
spans         sends spans to a collector
"""
