"""Two vision servers at once, asked for the same eight images; only one computes each: `two_servers.py RUN_DIR`."""

import subprocess
import sys
from pathlib import Path

SERVER = Path(__file__).with_name("vision_server.py")

if __name__ == "__main__":
    command = [sys.executable, str(SERVER), sys.argv[1]]
    servers = [subprocess.Popen(command, stdout=subprocess.PIPE, text=True) for _ in range(2)]
    answers = [server.communicate()[0].splitlines() for server in servers]
    computed = [int(lines[-1].rpartition(" ")[2]) for lines in answers]
    print(f"the answers are equal: {answers[0][:-1] == answers[1][:-1]}")
    print(f"towers run: {computed[0]} + {computed[1]} = {sum(computed)} for {len(answers[0]) - 1} images")
