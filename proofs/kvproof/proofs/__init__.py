"""Proofs of the rules with z3 and CrossHair. `promises` lists all theorems."""
