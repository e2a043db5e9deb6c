"""The rules. Standard library only. Read in this order: lineage, state, actions, clauses, device."""
