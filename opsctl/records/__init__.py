"""Frozen records that cross the wire or the disk, a module a noun, and their JSON form in `call`.

Shipped inside the agent: standard library only, Python 3.10 and newer. No I/O here.
Times are seconds since the epoch (UTC), sizes say their unit, an unknown number is None.
"""
