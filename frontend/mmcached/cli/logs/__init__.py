"""Log lines.

lines   one form for every log line of a process
limit   bounds how many lines one peer can cause
"""
