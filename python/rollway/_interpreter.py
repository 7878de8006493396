"""Refuses to be imported in a sub-interpreter. Imported by `rollway` before anything else, and by nobody besides.

The native modules below (optree, numpy, our own) keep state for the whole process, and belong to the first interpreter
that imported them. In another one, optree waits for ever for a lock.
"""

from __future__ import annotations

import importlib


def _refuse_a_sub_interpreter() -> None:
    for name in ("_interpreters", "_xxsubinterpreters"):  # as they are called from Python 3.13 on, and before
        try:
            interpreters = importlib.import_module(name)
        except ImportError:
            continue
        if interpreters.get_current() != interpreters.get_main():
            raise ImportError(
                "rollway cannot be imported in a sub-interpreter: its native modules work in the main interpreter "
                "only. Import it there, or start a process of its own (multiprocessing, subprocess)"
            )
        return


_refuse_a_sub_interpreter()
