"""Log lines: `lines` formats those of a process, `limit` limits those that a peer can cause."""
