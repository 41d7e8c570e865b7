"""Pure folds over log lines, GPU samples, ticks and the end of a job: findings and a verdict out.

No I/O, no clock: standard library and opsctl.records only, Python 3.10 and newer; shipped inside the agent.
"""
