"""Reaching a target: a host, a container on it, and a client for the agent inside."""
