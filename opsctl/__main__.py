"""`python -m opsctl`: the same as the `opsctl` command."""

from opsctl.cli.app import main

main()
