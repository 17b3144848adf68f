"""Log lines.

lines   the format of all log lines of a process
limit   a limit on the lines that one peer can cause
"""
