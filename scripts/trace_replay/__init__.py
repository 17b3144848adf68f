"""Recorded traffic played on the real KV cache manager, beside what would be ideal.

    prompts  what is asked for: a file, or that file with scans mixed in
    ideals   exact LRU over blocks alone, and Belady's optimum under the prefix rule
    replay   the manager, with requests that run
    chart    the curves as SVG

Everything counts blocks that are found; nothing here is timed.
"""
