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
    Drain,
    Drop,
    EndMove,
    Evict,
    Flush,
    PutInMain,
    Receive,
    Settle,
)
from scripts.verification.segment_words import Map
from scripts.verification.segment_world import Scenario, Setting
from scripts.verification.weak_memory import Order

REUSED = Setting(script=(Evict(0), Receive(), Receive()))
DROPPED = replace(REUSED, script=(Drop(0), Collect(), Receive(), Receive()))
KILLED = Setting(Map(num_units=2, num_readers=0), script=(Evict(0),), looks=(), num_kills=1, mortal=(0,))
PUT = Setting(Map(num_units=2), script=(Receive(),), looks=((1,),))
OUT_OF_STEP = Setting(
    Map(num_units=2, num_readers=0, num_slots=3, num_messages=4),
    script=(Evict(0), Receive(), Receive(), Receive(), Receive()),
    puts=((1, 2, 0),),
    looks=(),
)
SAME_KEY = Setting(
    Map(num_nurseries=2, num_writers=2),
    records=(),
    script=(Receive(1), Receive(2), Settle((1, 2))),
    puts=((1,), (1,)),
    looks=((1,),),
)
REPLACED = Setting(Map(num_units=2), script=(Receive(), Collect()), puts=((0,),), replaces=True)

MOVED = Setting(Map(num_main=1), script=(BeginMove(0), EndMove(), Collect()), puts=((),))
MOVED_REFILLED = replace(MOVED, script=(*MOVED.script, Receive(), Receive()), puts=((1,),))
MOVED_EVICTED = replace(MOVED_REFILLED, script=(BeginMove(0), Evict(0), Receive(), Receive(), EndMove()), looks=((1,),))

FLUSHED = replace(MOVED, script=(BeginMove(0), Flush(), EndMove()))
FLUSHED_PUT = Setting(Map(num_units=2), script=(Flush(), Receive(), Receive()), looks=((1,),))
FLUSHED_ADOPTED = replace(FLUSHED, successor=(Collect(),), num_kills=1, mortal=(0,))

DRAINED = Setting(
    Map(num_units=2, num_nurseries=2, num_slots=3, num_messages=4),
    script=(Drain(), Receive(), Receive(), Receive()),
    puts=((1, 2, 2),),
    looks=((2,),),
)
DIED = Setting(
    Map(num_units=2, num_slots=3),
    script=(Receive(), Died(1), Drain(), Receive()),
    looks=((1,),),
    num_kills=1,
    mortal=(1,),
)
REMOVED = Setting(script=(Drain(), Drop(0), Collect()))
EVACUATED = replace(MOVED, script=(Drain(), BeginMove(0), EndMove()))
NEXT_NURSERY = Setting(Map(num_nurseries=2, num_readers=0), script=(Drain(), Evict(0), Receive(), Receive()), looks=())

ADOPTED = Setting(script=(Drop(0),), successor=(Receive(), Receive()), num_kills=1, mortal=(0,))
ADOPTED_MAIN = Setting(
    Map(num_main=1, num_nurseries=0, num_writers=0),
    records=((0, 0),),
    script=(Drop(0),),
    successor=(PutInMain(1),),
    puts=(),
    num_kills=1,
    mortal=(0,),
)
ADOPTED_PUTS = Setting(
    Map(num_units=2, num_nurseries=2, num_readers=0, num_slots=3, num_messages=4),
    records=(),
    script=(Receive(),),
    successor=(Receive(), Receive(), Receive()),
    puts=((1, 2, 0, 0),),
    looks=(),
    num_kills=1,
    mortal=(0,),
)
REMOVED_ADOPTED = replace(REMOVED, successor=(Collect(),), num_kills=1, mortal=(0,))
REPLACED_ADOPTED = replace(REPLACED, successor=(Collect(),), num_kills=1, mortal=(0,))
MOVED_ADOPTED = replace(MOVED, successor=(Collect(),), num_kills=1, mortal=(0,))


def both(name: str, setting: Setting) -> Iterator[Scenario]:
    for order in Order:
        yield Scenario(f"{name}, {order.value}", setting, order)


def _in(order: Order, *named: tuple[str, Setting]) -> Iterator[Scenario]:
    for name, setting in named:
        yield Scenario(f"{name}, {order.value}", setting, order)


def settled(setting: Setting, *roles: int) -> Setting:
    """Let the last life of the frontend wait for these processes, and check who owns each place."""
    if setting.successor is None:
        return replace(setting, script=(*setting.script, Settle(roles)))
    return replace(setting, successor=(*setting.successor, Settle(roles)))


_TSO_IN_THE_SUITE = (
    ("a record is copied while a reader looks", MOVED),
    ("a drained nursery is emptied and removed", EVACUATED),
    ("what is dropped is collected when nobody reads it", DROPPED),
    ("the frontend is killed while it evicts", KILLED),
    ("answers come after the next message", settled(OUT_OF_STEP, 1)),
    ("a record is replaced while a reader looks", REPLACED),
    ("a record is evicted while it is copied", MOVED_EVICTED),
    ("all is flushed while a record is put", FLUSHED_PUT),
    ("all is flushed while a record is copied", FLUSHED),
    ("the frontend is killed while it flushes", FLUSHED_ADOPTED),
    ("the connection of a living writer is closed", settled(DRAINED, 1)),
    ("a writer is killed", DIED),
    ("a nursery is made when another was removed", NEXT_NURSERY),
    ("the frontend is killed while it drops a record", ADOPTED),
    ("the frontend is killed while it drops a record of its own", ADOPTED_MAIN),
    ("a writer goes on with the next frontend", ADOPTED_PUTS),
    ("the frontend is killed while it removes a nursery", REMOVED_ADOPTED),
    ("the frontend is killed while it copies a record", MOVED_ADOPTED),
)

SMALL = (
    *both("a record is put while a reader looks", PUT),
    *both("a drained nursery is removed", REMOVED),
    *_in(Order.TSO, *_TSO_IN_THE_SUITE),
)

LARGE = (
    *_in(Order.WEAK, *_TSO_IN_THE_SUITE),
    *both("a nursery is refilled while a reader looks", REUSED),
    *both("a writer goes on with the next frontend, and each place has an owner", settled(ADOPTED_PUTS, 1)),
    *both("the frontend is killed while it replaces a record", REPLACED_ADOPTED),
    *both("two writers put one key", SAME_KEY),
    *both("a nursery is refilled when its record was copied", MOVED_REFILLED),
    *both("a reader is killed that has a lease", replace(DROPPED, num_kills=1, mortal=(2,))),
    *both("the frontend and a writer are killed", replace(ADOPTED_PUTS, num_kills=2, mortal=(0, 1))),
    *_in(
        Order.TSO,
        ("a nursery is refilled, and each place has an owner", settled(REUSED, 1, 2)),
        (
            "a reader looks twice while a nursery is made and another removed",
            replace(NEXT_NURSERY, the_map=Map(num_nurseries=2), looks=((0, 1),)),
        ),
        (
            "a reader looks twice while a writer goes on with the next frontend",
            Setting(
                Map(num_units=2, num_nurseries=2),
                script=(Receive(),),
                successor=(Receive(), Receive()),
                puts=((1, 2),),
                looks=((0, 1),),
                num_kills=1,
                mortal=(0,),
            ),
        ),
        ("two readers look at what is dropped", replace(DROPPED, the_map=Map(num_readers=2), looks=((0,), (0,)))),
        ("two frontends are killed that drop a record", replace(ADOPTED, num_kills=2)),
        ("two frontends are killed that copy a record", replace(MOVED_ADOPTED, num_kills=2)),
        ("two frontends are killed that flush", replace(FLUSHED_ADOPTED, num_kills=2)),
        ("two frontends are killed that remove a nursery", replace(REMOVED_ADOPTED, num_kills=2)),
        (
            "two frontends are killed while a writer goes on",
            replace(
                ADOPTED_PUTS,
                the_map=replace(ADOPTED_PUTS.the_map, num_nurseries=3),
                num_kills=2,
            ),
        ),
    ),
)
