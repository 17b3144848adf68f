"""Who inherits orphans reaps them, and leaves its own children to those who wait for them."""

from __future__ import annotations

import subprocess
import sys

INHERIT = """
import ctypes, os, signal, subprocess
from mmcached.cli.serve.orphans import reap_orphans

PR_SET_CHILD_SUBREAPER = 36
assert ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 1) == 0
reap_orphans(set())  # no child at all
with subprocess.Popen(["sh", "-c", "sleep 1000 >&- & echo $!"], stdout=subprocess.PIPE) as parent:
    orphan = int(parent.stdout.read())
os.kill(orphan, signal.SIGKILL)
os.waitid(os.P_PID, orphan, os.WEXITED | os.WNOWAIT)
assert os.path.exists(f"/proc/{orphan}"), "a zombie"
reap_orphans(set())
assert not os.path.exists(f"/proc/{orphan}")
own = subprocess.Popen(["sh", "-c", "exit 5"])
os.waitid(os.P_PID, own.pid, os.WEXITED | os.WNOWAIT)
reap_orphans({own.pid})
assert own.wait() == 5
"""


def test_orphans_are_reaped_and_own_children_are_not() -> None:
    """In a process of its own: this one's children are other tests'."""
    done = subprocess.run([sys.executable, "-c", INHERIT], stderr=subprocess.PIPE, text=True, check=False, timeout=60)
    assert done.returncode == 0, done.stderr
