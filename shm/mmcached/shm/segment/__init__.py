"""The two shared-memory objects of a ring.

layout     what each word means, and who writes it
segment    creates, names and removes the objects
board      what readers must know of their writer now
mapped     opens and maps them                    populate: touches the pages before they are needed
pages      finds what is mapped by the address of a record, and says when it is unmapped
words      stores control words in order
nursery_files makes, reads and removes the files of nurseries; clients map them
ring_notes which rings are to be adopted
headroom   how much memory the process may still take
sweep      removes objects of dead writers
"""
