"""The step table: what happened around a finding, one dense line per step under fixed columns."""

from __future__ import annotations

from kvproof.audit.session import Line
from kvproof.spec.records import Row

COLUMNS = ("step", "before it", "rows", "zero", "copy", "preempt", "forget", "fly", "free", "broken")
LEGEND = (
    "step    its number, . for one without work; then +a arrives, -a is aborted, =3 step 3 completes before it",
    "rows    a:16+4 computes tokens 16 to 19 of a, * samples a token, =1,2|3 has this whole block table, >4|5 appends",
    "zero    blocks that are cleared; copy: source>target, a@8>5 exports the state after 8 tokens to block 5",
    "forget  requests that the worker drops; fly: steps in flight; free: length of the free queue; broken: checks",
)
BEFORE, AFTER = 9, 3  # lines shown around the step in question


def around(lines: list[Line], step: int) -> list[Line]:
    """The lines to show for a finding at a step."""
    at = next((i for i, line in enumerate(lines) if line.step.number >= step), len(lines) - 1)
    return lines[max(0, at - BEFORE) : at + AFTER + 1]


def render(lines: list[Line]) -> list[str]:
    """Header and one row per line, columns padded; a column that is empty throughout is left out."""
    table = [COLUMNS, *(cells(line) for line in lines)]
    widths = [max(len(row[i]) for row in table) for i in range(len(COLUMNS))]
    shown = [i for i in range(len(COLUMNS)) if any(row[i] for row in table[1:])]
    return ["  ".join(row[i].ljust(widths[i]) for i in shown).rstrip() for row in table]


def cells(line: Line) -> tuple[str, ...]:
    step = line.step
    return (
        str(step.number) if step.issued else ".",
        " ".join(line.before),
        "  ".join(map(share, step.rows)),
        ",".join(map(str, step.zeroes)),
        " ".join(f"{copy.src}>{copy.dst}" for copy in step.copies)
        + "".join(f" {c.request}@{c.position}>{c.block}" for c in step.checkpoints),
        " ".join(step.preempted),
        " ".join(step.finished),
        str(line.in_flight),
        "" if line.free is None else str(line.free),
        " ".join(line.faults),
    )


def share(row: Row) -> str:
    """One row: a:16+4* =1,2|3"""
    blocks = "=" + columns(row.table) if row.table is not None else ">" + columns(row.appended or [])
    told = f" {blocks}" if any(c.isdigit() for c in blocks) else ""
    return f"{row.request}:{row.start}+{row.count}{'*' if row.samples else ''}{told}"


def columns(table: list[list[int]]) -> str:
    return "|".join(",".join(map(str, column)) for column in table)
