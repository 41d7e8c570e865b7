"""What both sides read and write byte by byte: frames, lock files, source archives, file trees.

Shipped inside the agent: standard library only, Python 3.10 and newer.
"""
