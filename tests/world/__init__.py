"""One engine and its two workers in one process, without sockets: the proof that cached equals uncached.

    knobs     what a world is like: sizes, who asks for what, what goes wrong and how often; all drawn from one seed
    clients   who asks: prompts that share prefixes, items and turns, and what each one must be answered
    plainly   the uncached truth: one sequence at a time, from nothing, in numpy's int64
    rank      a real `ModelRunner` behind a wire that keeps nothing alive, and the accidents that it can have
    world     the real `Scheduler`, real plans, two ranks; plays the server's part, and lets accidents happen
    shelf     the host's store, with what another engine and evictions do to it
    audit     what must hold after every step: books against books, books against workers
    tally     how often what has happened
    mutants   one rule removed at a time; some world of a few must notice

Everything that a world does follows from its seed, and a failure names it.
"""
