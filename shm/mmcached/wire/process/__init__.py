"""Each role is a process, and does this like every other.

death         dies with its parent
signals       turns a signal into a flag that the loop reads
descriptors   raises the limit of open files, writes all of what one is given
turns         keeps the loop fair and alive
spans         sends its spans to a collector, if there is one
"""
