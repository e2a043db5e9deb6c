"""Proofs of the rules with z3 and CrossHair will live here, one module per module of spec. Nothing is proved yet."""
