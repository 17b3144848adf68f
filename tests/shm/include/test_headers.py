"""The headers compile as C11 and C++17, within their size, with the constants of the service."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from mmcached.shm.ring import lookup, reader, slot_table
from mmcached.shm.segment import board, layout
from mmcached.wire import latency, version
from tests.shm.include.compiling import INCLUDE, WARNINGS, compile_c, compiler

CONSTANTS = {
    "MMC_LAYOUT_VERSION": layout.LAYOUT_VERSION,
    "MMC_PROTOCOL_VERSION": version.PROTOCOL_VERSION,
    "MMC_PAGE": layout.PAGE_BYTES,
    "MMC_ALIGNMENT": layout.ALIGNMENT,
    "MMC_HEADER_BYTES": layout.HEADER_BYTES,
    "MMC_MAX_BYTES": layout.MAX_BYTES,
    "MMC_MAX_COUNT": layout.MAX_COUNT,
    "MMC_MAX_READERS": layout.MAX_READERS,
    "MMC_MAX_LOOKS": lookup.MAX_LOOKS,
    "MMC_MAX_NURSERIES": reader.MAX_NURSERIES,
    "MMC_SLOT_WORDS": layout.SLOT_WORDS,
    "MMC_SLOT_BITS": layout.SLOT_BITS,
    "MMC_INCARNATION": layout.INCARNATION_WORD,
    "MMC_PID": layout.PID_WORD,
    "MMC_TAKEN_BYTES": layout.TAKEN_BYTES_WORD,
    "MMC_RETURNED_BYTES": layout.RETURNED_BYTES_WORD,
    "MMC_HITS": layout.HITS_WORD,
    "MMC_MISSES": layout.MISSES_WORD,
    "MMC_TOUCHES": layout.TOUCHES_WORD,
    "MMC_FIRST_COUNT": layout.FIRST_COUNT_WORD,
    "MMC_TOUCH_LOG": layout.TOUCH_LOG_WORDS,
    "MMC_LATENCY": latency.NUM_WORDS,
    "MMC_ATTACHED": layout.ATTACHED_WORD,
    "MMC_READER_LIMIT": board.READER_LIMIT,
    "MMC_FREE_BYTES": board.FREE_BYTES,
    "MMC_GENERATION": slot_table.GENERATION,
    "MMC_OFFSET": slot_table.OFFSET,
    "MMC_NBYTES": slot_table.NBYTES,
    "MMC_NOTE": slot_table.NOTE_BYTES,
    "MMC_FIRST_KEY": slot_table.FIRST_KEY,
    "MMC_SECOND_KEY": slot_table.SECOND_KEY,
    "MMC_CHECK": slot_table.CHECK,
    "MMC_EXPIRY": slot_table.EXPIRY,
    "MMC_HAS_CRC32": slot_table.HAS_CRC32,
}
MAX_LINES = 600
SOURCE = '#define MMCACHED_READER_IMPLEMENTATION\n#include "mmcached_connection.h"\n'


def test_the_constants_are_those_of_the_service(tmp_path: Path) -> None:
    source = tmp_path / "constants.c"
    prints = "".join(f'printf("%llu\\n", (unsigned long long){name});' for name in CONSTANTS)
    source.write_text(f"{SOURCE}int main(void) {{ {prints} return 0; }}\n")
    program = compile_c(source, tmp_path / "constants")
    said = subprocess.run([program], capture_output=True, text=True, timeout=60, check=True).stdout.split()
    assert dict(zip(CONSTANTS, map(int, said), strict=True)) == CONSTANTS


@pytest.mark.parametrize(("name", "standard"), [("cc", "c11"), ("c++", "c++17")])
def test_the_headers_compile_without_warnings(name: str, standard: str, tmp_path: Path) -> None:
    source = tmp_path / "headers"
    source.write_text(SOURCE)
    language = "c" if name == "cc" else "c++"
    flags = [f"-std={standard}", *WARNINGS, f"-I{INCLUDE}", "-x", language]
    done = subprocess.run(
        [compiler(name), *flags, "-c", str(source), "-o", str(tmp_path / "headers.o")],
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stderr


def test_the_reader_is_one_small_header() -> None:
    assert len((INCLUDE / "mmcached_reader.h").read_text().splitlines()) <= MAX_LINES
