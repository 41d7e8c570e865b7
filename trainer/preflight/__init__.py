"""Tries a topology before hours go into it: replicas of a recipe's step compile at once, then run warm at once."""
