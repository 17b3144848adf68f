"""A process that forks while its client holds a view; says as JSON what parent and child have seen.

Run by path: `fork_child.py RUN_DIR`. The parent's leases must survive the child, and the child must work by itself.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import socket
import stat
import sys
import traceback
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from mmcached.client import AsyncClient, Client
from mmcached.wire.process.death import arm_from_environment


def locks(run_dir: Path) -> list[str]:
    return sorted(path.name for path in (run_dir / "clients").iterdir())


def connections(path: str) -> list[int]:
    """Return this process's descriptors that are connected to the unix socket at `path`."""
    found = []
    for fd in map(int, os.listdir("/proc/self/fd")):
        with contextlib.suppress(OSError):
            if not stat.S_ISSOCK(os.fstat(fd).st_mode):
                continue
            with socket.socket(fileno=os.dup(fd)) as duplicate:
                if duplicate.getpeername() == path:
                    found.append(fd)
    return found


def locked_objects() -> int:
    """Count this process's descriptors of what carries locks: the store's rows, and the presence of clients."""
    targets = []
    for name in os.listdir("/proc/self/fd"):
        try:
            targets.append(os.readlink(f"/proc/self/fd/{name}"))
        except OSError:
            continue
    return sum(target.endswith((".ctl", ".lock")) for target in targets)


def in_child(what: Callable[[], Any]) -> Any:
    """Fork; return what the child has found out, as JSON through a pipe."""
    read_fd, write_fd = os.pipe()
    pid = os.fork()
    if pid == 0:
        signal.alarm(60)  # it may not outlive a test that has failed
        try:
            found = what()
        except BaseException:
            found = traceback.format_exc()
        os.write(write_fd, json.dumps(found).encode())
        os._exit(0)
    os.close(write_fd)
    with os.fdopen(read_fd) as pipe:
        found = json.loads(pipe.read() or '"the child has died"')
    os.waitpid(pid, 0)
    return found


def first_byte(client: Client, key: str) -> int | None:
    hit = client.get(key, view=True, tensors="numpy")
    return None if hit is None else int(hit.record["x"][0])


def main(run_dir: Path) -> None:
    with Client(run_dir) as client:
        hit = client.get("k", view=True, tensors="numpy")
        assert hit is not None
        array = hit.record["x"]
        mine = locks(run_dir)

        def child() -> Any:
            nonlocal array, hit
            before = [len(connections(str(run_dir / "client.sock"))), locked_objects()]
            array = hit = None  # dies here too, and must not be given back
            byte = first_byte(client, "k")
            others = [name for name in locks(run_dir) if name not in mine]
            client.close()
            return {"inherited": before, "byte": byte, "new_locks": len(others), "after": locked_objects()}

        seen = in_child(child)
        still = {"byte": int(array[0]), "locks": locks(run_dir) == mine, "get": first_byte(client, "k")}
        print(json.dumps({"child": seen, "parent": still}), flush=True)
        sys.stdin.readline()  # until the test has looked at the leases
        del array, hit
        print(json.dumps("let go"), flush=True)
        sys.stdin.readline()
    asyncio.run(forked_loop(run_dir))


async def forked_loop(run_dir: Path) -> None:
    """An asyncio client, forked between two loops."""
    client = await AsyncClient(run_dir).__aenter__()
    found = [await client.contains_many(["k"])]

    async def ask() -> Any:
        hit = await client.get("k", tensors="numpy")
        await client.close()
        return None if hit is None else int(hit.record["x"][0])

    def child() -> Any:
        with ThreadPoolExecutor(1) as pool:  # in this thread the parent's loop seems to run
            return pool.submit(asyncio.run, ask()).result()

    found += [in_child(child), await client.contains_many(["k"])]
    await client.close()
    print(json.dumps(found), flush=True)


if __name__ == "__main__":
    arm_from_environment()
    main(Path(sys.argv[1]))
