"""`python -m opsctl`: the same as the `opsctl` command."""

from opsctl.cli.entry import main

main()
