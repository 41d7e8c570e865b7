"""Runs of the installed command, for the tests of this folder."""

from tests.support.caches import caches
from tests.support.envs import envs
from tests.support.runs import runs, smi

__all__ = ["caches", "envs", "runs", "smi"]
