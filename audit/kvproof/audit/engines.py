"""The targets by name: how to make each one, what to run on it, and why it cannot be made here."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from kvproof.audit.case import BadInput
from kvproof.audit.connected import connected_program
from kvproof.audit.program import Program
from kvproof.audit.session import Outcome, run_program
from kvproof.audit.target import Target
from kvproof.audit.workload import Shape, Yield, random_program, shape_of
from kvproof.spec.geometry import Geometry

TARGETS = {
    "reference": "the reference engine",
    "vllm": "the scheduler of the installed vLLM",
    "vllm-pool": "the block pool of the installed vLLM, alone",
}


PRESETS = ("qwen3-next", "granite")  # geometries that the installed vLLM works out itself


@dataclass(frozen=True, slots=True)
class Harness:
    """A target with its workload. generate: (generator, profile, shapes) to a program. run: a program to what it shows.

    preset: the geometry that the target was made for, where it was made for one.
    """

    name: str
    release: str
    generate: Callable[[random.Random, str, Sequence[Shape]], Program]
    run: Callable[[Program], Outcome]
    preset: Shape | None = None

    @classmethod
    def of(cls, name: str, target: Target, preset: Shape | None = None) -> Harness:
        generate = connected_program if hasattr(target, "add_with") else random_program
        return cls(name, target.release, generate, lambda program: run_program(target, program), preset)

    def shape_of(self, geometry: Geometry) -> Shape:
        return self.preset if self.preset and self.preset.fits(geometry) else shape_of(geometry)


def make_harness(name: str, geometry: str | None = None) -> Harness:
    """Raises `BadInput` for an unknown name, `TargetUnavailable` where the engine cannot be driven here.

    geometry: a preset makes a target of its own, any other name the same one.
    """
    if geometry in PRESETS and name != "vllm":
        raise BadInput(f"geometry {geometry} is worked out by vLLM: add --target vllm")
    if name == "reference":
        from kvproof.audit.connected import connected_program
        from kvproof.audit.targets.reference import ReferenceTarget

        engine = ReferenceTarget()
        return Harness(name, engine.release, connected_program, lambda program: run_program(engine, program))
    if name == "vllm":
        from kvproof.audit.targets.vllm_presets import preset
        from kvproof.audit.targets.vllm_target import VllmTarget

        if geometry not in PRESETS:
            return Harness.of(name, VllmTarget())
        made = preset(geometry)
        return Harness.of(name, VllmTarget(build=made.build), Shape(geometry, Yield.YIELDED, made.geometry))
    if name == "vllm-pool":
        from kvproof.audit.pool import random_pool_program, run_pool_program
        from kvproof.audit.targets.vllm_build import load

        return Harness(name, load().release, random_pool_program, run_pool_program)
    raise BadInput(f"no target is named {name!r}: use one of {', '.join(TARGETS)}")
