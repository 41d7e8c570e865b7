"""Compile caches on the target: one live folder a key, and checked archives of warm ones."""
