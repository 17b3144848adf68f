"""A service under attack: what attackers do, what an honest client sees of it, and what it costs the roles.

files           pictures that are small to send and dear to decode
announcements   frames that are announced and never come
attacks         the attacks, each a process of its own: `python -m tests.integration.hostile.attacks NAME RUN_DIR SEED`
counts          the attack on a ring's counts
client_lives    attacks by clients that keep the rules: forks with views, interrupted calls; they judge what they see
honest          a client with questions whose answers are known; counts and times them
burden          memory and descriptors of each role over time
"""
