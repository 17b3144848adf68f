"""Tests the second level with real masters of Mooncake Store, and processes that lend them memory.

stores           starts, stops and kills them
libraries.sh     brings what Mooncake needs of the system, where it is not there
"""
