"""The command line: one file a noun; each command parses, calls one function of ops and renders."""
