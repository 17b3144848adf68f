"""The stats page: one file in the run directory that holds the figures of every role.

layout      meaning of each word
table       counters by key, behind the page's slots
page        the file: written by each role, read by all
publisher   writes a role's figures: periodically, and before an answer
service     combines the figures of several roles
"""
