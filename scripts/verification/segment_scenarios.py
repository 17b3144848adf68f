"""Lists what is explored of a store of several segments.

Small scenarios are part of the suite, large ones of the soak.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from scripts.verification.segment_jobs import (
    BeginMove,
    Collect,
    Died,
    Drop,
    EndMove,
    Evict,
    Flush,
    Grant,
    Open,
    PutInMain,
    Receive,
    Remove,
    Settle,
    TakeOver,
)
from scripts.verification.segment_words import Map
from scripts.verification.segment_world import Scenario, Setting
from scripts.verification.weak_memory import Order

REUSED = Setting(script=(Evict(0), Grant(), Receive()))
REFILLED = replace(REUSED, script=(*REUSED.script, Settle((1, 2))))
DROPPED = replace(REUSED, script=(Drop(0), Collect(), Grant(), Receive()))
FULL = Setting(
    Map(units=(1, 2), num_slots=2), records=((0, 1), (2, 1)), script=(Evict(2), Grant(), Receive()), puts=((1,),)
)
ONE_ENTRY = Setting(
    Map(units=(0, 2), num_puts=2, num_entries=1),
    records=(),
    script=(Grant(), Receive(), Receive()),
    puts=((1, 2),),
    looks=((1,),),
)
OUT_OF_ORDER = Setting(
    Map(units=(0, 2), num_readers=0, num_slots=3, num_puts=3),
    records=(),
    script=(Receive(), Grant(), Receive(), Receive(), Settle((1,))),
    puts=((1, 2, 0),),
    looks=(),
)
SAME_KEY = Setting(
    Map(units=(0, 1, 1)),
    records=(),
    script=(Receive(1), Receive(2), Settle((1, 2, 3))),
    puts=((1,), (1,)),
    looks=((1,),),
)
LOST = Setting(
    Map(units=(0, 2), num_readers=0, num_puts=2),
    records=(),
    script=(Receive(),),
    successor=(Settle((1,)),),
    puts=((1, 2),),
    looks=(),
    num_kills=1,
    mortal=(0,),
)

MOVED = Setting(script=(BeginMove(0), EndMove(), Collect()), puts=((),))
MOVED_REFILLED = replace(MOVED, script=(*MOVED.script, Grant(), Receive()), puts=((1,),))
MOVED_EVICTED = Setting(script=(BeginMove(0), Evict(0), Grant(), Receive(), EndMove()), looks=((1,),))

FLUSHED = Setting(script=(BeginMove(0), Flush(), EndMove()), puts=((),))
FLUSHED_PUT = Setting(script=(Flush(), Grant(), Receive()), looks=((1,),))
FLUSHED_ADOPTED = replace(FLUSHED, successor=(Collect(),), num_kills=1, mortal=(0,))

ADOPTED = Setting(script=(Drop(0),), successor=(Grant(),), num_kills=1, mortal=(0,))
ADOPTED_MAIN = Setting(
    Map(units=(1,)), ((0, 0),), script=(Drop(0),), successor=(PutInMain(1),), puts=(), num_kills=1, mortal=(0,)
)
ADOPTED_PUTS = Setting(
    Map(num_readers=0, num_puts=2),
    script=(Drop(0), Grant()),
    successor=(Receive(), Grant(), Settle((1,))),
    puts=((1, 2),),
    looks=(),
    num_kills=1,
    mortal=(0,),
)
ADOPTED_ROOM = Setting(
    Map(units=(0, 2), num_readers=0, num_slots=3, num_puts=2),
    script=(Collect(),),
    successor=(Grant(), Receive(), Settle((1,))),
    puts=((1, 2),),
    looks=(),
    num_kills=1,
    mortal=(0,),
)
MOVED_ADOPTED = replace(MOVED, successor=(Collect(),), num_kills=1, mortal=(0,))

TAKEN_OVER = Setting(
    Map(units=(0, 2), num_slots=3),
    script=(TakeOver(), PutInMain(2), Receive()),
    num_kills=1,
    mortal=(1,),
    looks=((1,),),
)
REMOVED = Setting(script=(Drop(0), TakeOver(), Remove(), Collect(), Remove()), puts=((),), num_kills=1, mortal=(1,))
EVACUATED = Setting(
    script=(Died(1), TakeOver(), BeginMove(0), EndMove(), Remove()), puts=((),), num_kills=1, mortal=(1,)
)
NEXT_SEGMENT = Setting(
    Map(units=(0, 1, 1), num_slots=2),
    script=(Died(1), TakeOver(1), Evict(0), Remove(1), Open(2), Grant(2), Receive(2)),
    puts=((), (1,)),
    looks=((0, 1),),
    late=(2,),
    num_kills=1,
    mortal=(1,),
)


TAKEN_OVER_ADOPTED = Setting(
    Map(units=(0, 2), num_slots=3),
    script=(Receive(),),
    successor=(Receive(), TakeOver(), PutInMain(2), Receive()),
    num_kills=2,
    mortal=(0, 1),
    looks=((1,),),
)
REMOVED_ADOPTED = replace(
    REMOVED,
    script=(Died(1), TakeOver(), Drop(0), Remove()),
    successor=(TakeOver(), Remove()),
    num_kills=2,
    mortal=(0, 1),
)
TWO_READERS = replace(REUSED, the_map=Map(num_readers=2), script=(Drop(0), Collect(), Grant()), looks=((0,), (0,)))


def both(name: str, setting: Setting) -> Iterator[Scenario]:
    for order in Order:
        yield Scenario(f"{name}, {order.value}", setting, order)


def _in(order: Order, *named: tuple[str, Setting]) -> Iterator[Scenario]:
    for name, setting in named:
        yield Scenario(f"{name}, {order.value}", setting, order)


_TSO_IN_THE_SUITE = (
    ("a nursery is refilled while a reader looks", REFILLED),
    ("a writer has room for one grant", ONE_ENTRY),
    ("puts come in another order than their places were granted", OUT_OF_ORDER),
    ("a put is lost with its frontend", LOST),
    ("a record is evicted while it is copied", MOVED_EVICTED),
    ("a record is copied while a reader looks", MOVED),
    ("the frontend is killed while it copies a record", MOVED_ADOPTED),
    ("the frontend is killed while it drops a record of its own", ADOPTED_MAIN),
    ("the frontend is killed before it grants", ADOPTED_PUTS),
    ("a writer goes on with the next frontend", ADOPTED_ROOM),
    ("the segment of a dead writer is taken over", TAKEN_OVER),
    ("the segment of a dead writer is removed", REMOVED),
    ("the segment of a dead writer is emptied and removed", EVACUATED),
)

SMALL = (
    *both("a full nursery is refilled while a reader looks", FULL),
    *both("all is flushed while a record is copied", FLUSHED),
    *both("all is flushed while a record is put", FLUSHED_PUT),
    *_in(Order.TSO, *_TSO_IN_THE_SUITE),
)

LARGE = (
    *_in(Order.WEAK, *_TSO_IN_THE_SUITE),
    *both("what is dropped is collected when nobody reads it", DROPPED),
    *both("a reader is killed that has a lease", replace(DROPPED, num_kills=1, mortal=(2,))),
    *both("two writers put one key", SAME_KEY),
    *both("a nursery is refilled when its record was copied", MOVED_REFILLED),
    *both("the frontend is killed while it drops a record", ADOPTED),
    *both("a segment is made when another was removed", NEXT_SEGMENT),
    *both("the frontend and a writer are killed", replace(ADOPTED_ROOM, num_kills=2, mortal=(0, 1))),
    *both("the frontend is killed while it flushes", FLUSHED_ADOPTED),
    *both("the frontend is killed while it removes a segment", REMOVED_ADOPTED),
    *_in(
        Order.TSO,
        ("a segment is taken over by the next frontend", TAKEN_OVER_ADOPTED),
        ("two readers look at what is dropped", TWO_READERS),
        ("two frontends are killed that drop a record", replace(ADOPTED, num_kills=2)),
        ("two frontends are killed that copy a record", replace(MOVED_ADOPTED, num_kills=2)),
        ("two frontends are killed that flush", replace(FLUSHED_ADOPTED, num_kills=2)),
    ),
)
