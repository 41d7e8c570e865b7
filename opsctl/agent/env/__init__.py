"""Environments on the target: built fresh, proven, checked against a manifest, flipped by rename."""
