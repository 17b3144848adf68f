"""The two shared-memory objects of a ring.

layout     meaning of each word, and the process that writes it
segment    creates, names and removes the objects
board      the writer's present state, for readers
mapped     opens and maps the objects             populate: populates pages before they are needed
pages      finds a mapping by the address of a record, and reports its end
words      orders loads and stores of control words
nursery_files creates, reads and removes the files of nurseries (clients' segments)
ring_notes rings that a service is to adopt at its next start
headroom   memory that the process may still allocate
sweep      removes objects of dead writers
"""
