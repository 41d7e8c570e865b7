"""Runs inside an environment's own Python (`python -I -B -c SOURCE`): compiles sources to bytecode, on all cores.

Reads {"root": folder, "paths": [...], "num_workers": N} from stdin and prints the number of finished ones, now and
then. A source that does not parse stays without. Standard library only; imports nothing of opsctl.
"""

from __future__ import annotations

import json
import multiprocessing
import os
import py_compile
import sys
from concurrent.futures import ProcessPoolExecutor

CHUNK = 16  # sources that a worker takes at once


def compile_one(path: str) -> None:
    """Write the bytecode of one source, whatever lies there already."""
    try:
        # by time also where SOURCE_DATE_EPOCH asks for hashes: a kept one is given the time of the next source
        py_compile.compile(path, doraise=True, invalidation_mode=py_compile.PycInvalidationMode.TIMESTAMP)
    except (py_compile.PyCompileError, UnicodeDecodeError, ValueError, RecursionError):
        return  # tests and templates hold what no Python parses; importing them would say so


def main() -> None:
    """Answer one request."""
    request = json.load(sys.stdin)
    os.chdir(request["root"])
    paths = request["paths"]
    forking = multiprocessing.get_context("fork")  # other ways would look for a file that holds this program
    with ProcessPoolExecutor(request["num_workers"], mp_context=forking) as pool:
        for count, _ in enumerate(pool.map(compile_one, paths, chunksize=CHUNK), start=1):
            if count % CHUNK == 0 or count == len(paths):
                sys.stdout.write(f"{count}\n")
                sys.stdout.flush()


if __name__ == "__main__":
    main()
