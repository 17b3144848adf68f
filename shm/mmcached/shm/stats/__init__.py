"""The stats page: one file in the run directory that holds the figures of every role.

layout      which word means what
client_rows figures of each name of clients, in the page's last slot
page        the file: written by each role, read by all
publisher   writes a role's figures: now and then, and before an answer
service     puts the figures of several roles together
"""
