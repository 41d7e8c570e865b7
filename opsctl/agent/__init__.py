"""The part of opsctl that runs inside the target, from one pushed file.

Standard library and libtmux only (libtmux just where tmux is touched); Python 3.10 and newer.
"""
