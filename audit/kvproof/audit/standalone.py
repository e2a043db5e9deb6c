"""Renders a case as a Python test that people can paste: for vLLM it runs on vLLM's own API, without kvproof.

The vLLM program is a fixed prelude (the text of prelude_vllm.py), the configuration, one line per operation, and at the end
what to look at in vLLM's own state.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby
from pathlib import Path

from kvproof.audit.case import Case
from kvproof.audit.program import (
    Abort,
    Add,
    AnyOperation,
    Complete,
    EndLoad,
    EndSave,
    Free,
    Hit,
    Key,
    ResetCache,
    Schedule,
    Take,
)
from kvproof.spec.geometry import Kind
from kvproof.spec.records import Config, Step

PRELUDES = {name: Path(__file__).with_name(f"prelude_{name.replace('-', '_')}.py") for name in ("vllm", "vllm-pool")}

# What to assert at the end, by check; else the pool is printed and the reader compares it with the finding.
ENDINGS = {
    "progress": "assert not engine.scheduler.has_unfinished_requests(), 'no progress'",
    "retired-key": "assert engine.two_keys() == [], engine.two_keys()",
    "event-parent": "assert engine.unknown_parents() == [], engine.unknown_parents()",
    "event-residency": "assert engine.announced() == engine.index(), (engine.announced(), engine.index())",
    "event-shape": "assert engine.odd_events() == [], engine.odd_events()",
    "refs-are-holders": "assert all(block.ref_cnt == 0 for block in engine.pool.blocks[1:]), 'still held'",
    "free-queue": "assert engine.pool.get_num_free_blocks() == len(engine.pool.blocks) - 1, 'blocks missing'",
    "no-orphan": "assert engine.pool.get_num_free_blocks() == len(engine.pool.blocks) - 1, 'blocks missing'",
}

CALLS = {
    Schedule: "step()",
    Complete: "complete()",
    ResetCache: "reset()",
    Take: "take()",
    EndLoad: "end_load()",
    EndSave: "end_save()",
}


CHAINED = "assert engine.chained_copies() == [], engine.chained_copies()"


def standalone(case: Case, steps: Sequence[Step] = ()) -> str:
    """A complete file. steps: what the engine did, where it is known: it helps to say what to look at."""
    if case.target not in PRELUDES:
        return "\n".join([*operations_text(case, steps), ""])
    test = f"test_{case.name.replace('-', '_')}"
    body = ["", "", f"def {test}() -> None:", *(f"    {line}" for line in operations_text(case, steps))]
    main = ["", "", 'if __name__ == "__main__":', f"    {test}()", ""]
    return PRELUDES[case.target].read_text() + "\n".join([*body, *main])


def operations_text(case: Case, steps: Sequence[Step] = ()) -> list[str]:
    """The part that differs from case to case, as it stands in the file."""
    finding = case.finding
    head = [f"# {finding.check} ({finding.signature}), found on {case.target} {case.release}:", f"# {finding.what}"]
    if case.target == "vllm-pool":
        return [*head, f"engine = Pool({case.config.geometry.num_blocks})", *calls(case)]
    if case.target == "vllm":
        ending = filter(None, [ENDINGS.get(finding.check) or (CHAINED if any(map(chained, steps)) else None)])
        return [
            *head,
            f"engine = Engine({engine_arguments(case.config)})",
            *calls(case),
            "engine.drain()",
            "engine.show()",
            *ending,
        ]
    return head + on_kvproof(case)


def chained(step: Step) -> bool:
    """Whether a copy reads what another copy of the same step writes."""
    return not {copy.src for copy in step.copies}.isdisjoint(copy.dst for copy in step.copies)


def calls(case: Case) -> list[str]:
    """One line per operation, equal ones in a row as a loop."""
    lines: list[str] = []
    for call, repeats in groupby(map(call_of, case.operations)):
        times = len(list(repeats))
        lines += [f"for _ in range({times}):", f"    engine.{call}"] if times > 1 else [f"engine.{call}"]
    return lines


def engine_arguments(config: Config) -> str:
    """Sizes always, options where they differ from the prelude's defaults."""
    geometry = config.geometry
    sizes = (
        f"groups={[group.block_size for group in geometry.groups]}, unit={geometry.unit}, blocks={geometry.num_blocks}, "
        f"budget={config.max_batched_tokens}, seqs={config.max_seqs}, length={config.max_model_len}"
    )
    options = {
        "attention": ([group.kind for group in geometry.groups].index(Kind.APPEND_ONLY), 0),
        "retention": (geometry.retention, None),
        "depth": (config.depth, 1),
        "fences": (config.fences, False),
        "policy": (config.policy.value, "fcfs"),
        "junctions": (config.junctions, False),
        "checkpoint": (any(group.checkpoint for group in geometry.states), False),
    }
    return ", ".join([sizes, *(f"{name}={value!r}" for name, (value, plain) in options.items() if value != plain)])


def call_of(operation: AnyOperation) -> str:
    """A call of the prelude. Operations of a connector have none: no target of vLLM has a connector."""
    match operation:
        case Add():
            prompt = "".join(f", range({start}, {stop})" for start, stop in operation.prompt)
            options = {"priority": operation.priority, "salt": operation.salt, "after": operation.after}
            extra = "".join(f", {name}={value!r}" for name, value in options.items() if value)
            return f"add({operation.id!r}{prompt}, max_tokens={operation.max_tokens}{extra})"
        case Abort(id):
            return f"abort({id!r})"
        case Key(block) | Hit(block) | Free(block):
            return f"{type(operation).__name__.lower()}({block})"
        case _:
            return CALLS[type(operation)]


def on_kvproof(case: Case) -> list[str]:
    """The case on kvproof's own API, for targets that have no other."""
    identity = case.finding.identity
    names = {type(operation).__name__ for operation in case.operations}
    return [
        "from kvproof.audit.engines import make_harness",
        f"from kvproof.audit.program import {', '.join(sorted({'Program', *names}))}",
        "from kvproof.spec.geometry import Geometry",
        "from kvproof.spec.records import Config, Policy",
        "",
        f"config = {config_text(case.config)}",
        "operations = (",
        *(f"    {repr_of(operation)}," for operation in case.operations),
        ")",
        f"findings = make_harness({case.target!r}).run(Program(config, operations)).findings",
        f"assert {identity!r} not in findings, findings[{identity!r}].what",
    ]


def repr_of(operation: AnyOperation) -> str:
    """A constructor call without the fields that have their default."""
    fields = operation.__struct_fields__
    defaults = dict(zip(reversed(fields), reversed(operation.__struct_defaults__), strict=False))
    values = {name: getattr(operation, name) for name in fields}
    shown = [f"{name}={value!r}" for name, value in values.items() if name not in defaults or defaults[name] != value]
    return f"{type(operation).__name__}({', '.join(shown)})"


def config_text(config: Config) -> str:
    """The configuration as an expression."""
    geometry = config.geometry
    sizes = tuple(group.block_size for group in geometry.groups)
    checkpoint = ", checkpoint=True" if any(group.checkpoint for group in geometry.states) else ""
    return (
        f"Config(Geometry.of({sizes[0]}, {sizes[1:]}, unit={geometry.unit}, "
        f"num_blocks={geometry.num_blocks}, retention={geometry.retention}{checkpoint}), "
        f"max_batched_tokens={config.max_batched_tokens}, max_seqs={config.max_seqs}, "
        f"max_model_len={config.max_model_len}, depth={config.depth}, fences={config.fences}, "
        f"policy=Policy.{config.policy.name}, junctions={config.junctions})"
    )
