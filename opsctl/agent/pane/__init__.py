"""Watching a tmux pane that opsctl did not start: its text, its job, and what the folds say of both."""
