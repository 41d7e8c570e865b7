"""opsctl: a containerised ops toolkit for remote GPU hosts.

This package root is also shipped inside the agent, so it imports nothing.
"""

__version__ = "0.1.0"
