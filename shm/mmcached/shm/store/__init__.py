"""Records of tensors as bytes, and records under keys in a ring.

object_store   records under string keys: the writer's index
object_reader  from a handle to a record
record_note    the note behind a record, for a successor of the writer
codec          encodes a record as bytes; decodes it in place
record_head    the head of an encoded record
tensor_bytes   tensors of numpy and torch as plain bytes
"""
