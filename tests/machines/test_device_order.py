"""The kernel's contents are the device's, in whatever order an engine calls: its guards of device order see to that.

A step of random operations is staged in random order, and what the kernel takes goes to the shadow device as one record.
Then every block holds there what the kernel says. Without any one of the guards some order tells the two apart.
"""

from __future__ import annotations

import random

import pytest

from kvproof.spec.actions import ACTIONS, DEVICE_ORDER
from kvproof.spec.device import Device, load_contents
from kvproof.spec.errors import Refused
from kvproof.spec.geometry import Geometry
from kvproof.spec.lineage import UNKNOWN, Forest, written
from kvproof.spec.records import Copy, Load, Request, Row, Step
from kvproof.spec.state import Holder, Owner, State

BLOCKS = range(1, 5)
GEOMETRY = Geometry.of(4, (), num_blocks=len(BLOCKS) + 1)
GROUP = GEOMETRY.groups[0]
SEEDS = range(600)


class Lenient(State):
    """A kernel that does not ask one guard of one action."""

    def __init__(self, action: str, guard: str) -> None:
        super().__init__(strict=True)
        self.dropped, self.action = (action, guard), ""

    def require(self, guard: str, term: object) -> None:
        if (self.action, guard) != self.dropped:
            super().require(guard, term)


class Bench:
    """A kernel and a device after one step, in which a request on each block wrote a token. Nobody relies on it any more,
    and each block has the fence that an endpoint of a copy needs."""

    def __init__(self, dropped: tuple[str, str]) -> None:
        forest = Forest()
        self.state, self.device = Lenient(*dropped), Device(GEOMETRY, forest)
        self.requests = {b: Request(str(b), tuple(range(10 * b, 10 * b + 4)), max_tokens=1) for b in BLOCKS}
        self.texts = {b: forest.text(request.prompt) for b, request in self.requests.items()}
        self.slots = {b: Holder(0, ("slot", b)) for b in BLOCKS}
        owner = Owner("request", "everybody")
        self.do("start", owner)
        for block, request in self.requests.items():
            self.device.admit(request)
            self.do("acquire", self.slots[block], block, owner)
            self.write(block, 1)
        self.device.run(Step(1, [Row(str(b), 0, 1, False, table=[[b]]) for b in BLOCKS]))
        self.do("issue")
        for block in BLOCKS:
            self.do("pin", Holder(0, ("endpoint", block)), block, 2)

    def do(self, action: str, *arguments: object) -> None:
        self.state.action = action
        try:
            ACTIONS[action].apply(self.state, *arguments)
        finally:
            self.state.settle()

    def write(self, block: int, tokens: int) -> None:
        need = self.texts[block][tokens].key(GROUP)
        content = written(self.state.after[block], GROUP, 0, tokens, need.lineage)
        self.do("stage_write", self.slots[block], block, content, need)
        self.do("forget", self.slots[block], need)

    def load(self, block: int) -> Load:
        load = Load(str(block), 0, 2, True, [[block]])
        ((_, _, _, content, need),) = load_contents(load, [GROUP], self.texts[block].__getitem__)
        self.do("stage_load", self.slots[block], block, content, need)
        self.do("forget", self.slots[block], need)
        return load

    def stage(self, chance: random.Random) -> Step:
        """Offers operations; the record of those that the kernel takes. What failed to load was junk from the start."""
        step = Step(2)
        for _ in range(chance.randint(2, 5)):
            block, other = chance.sample(BLOCKS, 2)
            try:
                match chance.choice(("zero", "move", "redirect", "load", "write", "spoil")):
                    case "zero":
                        self.do("stage_zero", block)
                        step.zeroes.append(block)
                    case "move":
                        self.do("move", block, other)
                        step.copies.append(Copy(block, other))
                    case "redirect":
                        self.do("redirect", self.slots[block], block, self.slots[other], other)
                        step.copies.append(Copy(block, other))
                    case "load" if str(block) not in [load.request for load in step.loads]:
                        step.loads.append(self.load(block))
                    case "write" if str(block) not in [row.request for row in step.rows]:
                        self.write(block, 4)
                        step.rows.append(Row(str(block), 0, 4, False, appended=[[]]))
                    case "spoil" if not (step.zeroes or step.rows or step.loads):  # for these it would know less, not more
                        self.do("spoil", block, UNKNOWN)
                        self.device.outside_write([block])
            except Refused:
                continue
        return step

    def differences(self, chance: random.Random) -> list[str]:
        """Blocks of which the kernel says something else than the device holds after one more step."""
        self.device.run(self.stage(chance))
        held = {block: (repr(self.state.after[block]), repr(self.device._contents[block])) for block in BLOCKS}
        return [f"block {block}: {said}, but {there}" for block, (said, there) in held.items() if said != there]


def test_the_kernel_says_what_the_device_holds() -> None:
    for seed in SEEDS:
        assert Bench(("", "")).differences(random.Random(seed)) == []


@pytest.mark.parametrize(
    "dropped",
    [(name, guard) for name, action in ACTIONS.items() for guard in action.guards if guard in DEVICE_ORDER],
    ids=" ".join,
)
def test_without_one_of_the_guards_it_does_not(dropped: tuple[str, str]) -> None:
    assert any(Bench(dropped).differences(random.Random(seed)) for seed in SEEDS)
