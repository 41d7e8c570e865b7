"""The operator's side of each job: one module a noun, functions that return records and never print."""
