"""The run table: the actions of a run of `kvproof.proofs.runs`, one a line, and what each changed, in the rules' words."""

from __future__ import annotations

from collections.abc import Mapping

from kvproof.proofs.obligations import RULES, Tables
from kvproof.proofs.runs import Run, known, named_in, replay, said
from kvproof.spec.state import Holder, State


def render(run: Run, rules: Tables = RULES) -> list[str]:
    """A column shows what an action changed; one that never changes is left out. `!` marks an action against a guard."""
    blocks = {"0": State().null} | {name: known()["Block"][name] for name in named_in(run, "Block", rules)}
    seen = [columns(State(), blocks)]
    moments = replay(run, rules, lambda state: seen.append(columns(state, blocks)))
    lines = [["", "action", "arguments", *seen[0]]]
    for i, ((name, arguments), moment) in enumerate(zip(run.steps, moments, strict=True), 1):
        changed = [now or "-" if now != seen[i - 1][column] else "" for column, now in seen[i].items()]
        lines.append([f"{i}{'!' * bool(moment.refused)}", name, said(rules.actions[name], arguments), *changed])
    used = [i for i in range(len(lines[0])) if any(line[i] for line in lines[1:])]
    widths = {i: max(len(line[i]) for line in lines) for i in used}
    ends = [f"!  against the guard: {guard}" for guard in dict.fromkeys(g for m in moments for g in m.refused)]
    ends += [f"broken for {row}: {name}" if row else f"broken: {name}" for name, row in moments[-1].broken]
    return ["  ".join(line[i].ljust(widths[i]) for i in used).rstrip() for line in lines] + ends


def columns(state: State, blocks: Mapping[str, int]) -> dict[str, str]:
    """The clock; of each block who holds it and for which needs; its keys, those of the staged step with a star; its content
    before, in the middle of and after the staged step, once where they are the same; and its last use."""
    names = {value: name for members in known().values() for name, value in members.items()}

    def holder(it: Holder, block: int) -> str:
        owner = f"until {state.fence[it]}" if state.fenced[it] else " ".join(f"of {names[o]}" for o in state.belongs.of(it))
        needs = [f"needs {names[key]}" for key in state.needs.of(it)] + [f"reads {names[key]}" for key in state.reads.of(it)]
        return " ".join([names[it], owner, *sorted(needs), *(["loads"] if state.loading[it, block] else [])])

    found = {"done/issued": f"{state.completed}/{state.issued}"}
    for name, block in sorted(blocks.items()):
        contents = [names[part[block]] for part in (state.before, state.mid, state.after)]
        found[f"{name}: held by"] = ", ".join(sorted(holder(it, block) for it in state.holds.at(block)))
        found[f"{name}: keys"] = ", ".join(sorted(names[k] + "*" * state.staged_key[k, block] for k in state.keyed.at(block)))
        found[f"{name}: content"] = contents[0] if len(set(contents)) == 1 else " > ".join(contents)
        found[f"{name}: used in"] = str(state.last_use[block])
    return found


def why(run: Run) -> str:
    """One sentence: what breaks without the guard that the run drops."""
    broken = dict.fromkeys(name for name, _ in replay(run)[-1].broken)
    return "Without it this no longer holds: " + "; ".join(broken) + "."
