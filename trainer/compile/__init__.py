"""Compile discipline: every compiled function is guarded, warmed forward and backward, then sealed.

After the seal a recompile, a late backward, a graph break or a silent switch ends the run with an exception that says
which function, why, with what shapes, and what to do. It imports nothing else of the trainer, so that another trainer
can use it as it is; docs/compile.md shows how.
"""

from trainer.compile.counters import Counters, read_counters
from trainer.compile.discipline import Discipline
from trainer.compile.errors import CompileError, SealBroken, SwitchRefused, explain, explain_stray
from trainer.compile.guard import Compiled, own_code
from trainer.compile.switches import compiler_options, refuse_silencers, silencing_switches
from trainer.compile.threads import Lock, Release, Replica, ThreadedReplicas, needs_lock, release_of

__all__ = [
    "CompileError",
    "Compiled",
    "Counters",
    "Discipline",
    "Lock",
    "Release",
    "Replica",
    "SealBroken",
    "SwitchRefused",
    "ThreadedReplicas",
    "compiler_options",
    "explain",
    "explain_stray",
    "needs_lock",
    "own_code",
    "read_counters",
    "refuse_silencers",
    "release_of",
    "silencing_switches",
]
