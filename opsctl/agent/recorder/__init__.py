"""The process in a run's tmux pane: it owns the job, its log, its telemetry and its exit record."""
