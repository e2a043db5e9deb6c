"""Where chunks stop."""

from __future__ import annotations

import pytest

from kvproof.reference.chunking import Chunking
from kvproof.spec.geometry import Geometry
from kvproof.spec.records import Config


def chunks(config: Config, prompt: int, start: int = 0, junction: int = 0, known: int | None = None) -> list[int]:
    """Lengths of the chunks of a prompt that has every step for itself."""
    chunking, lengths = Chunking(config), []
    while start < (known or prompt):
        wanted = min((known or prompt) - start, config.max_batched_tokens)
        stop, _ = chunking.stop(start, wanted, prompt, known or prompt, junction)
        lengths.append(stop - start)
        start = stop
    return lengths


def config_of(append_only: int, states: tuple[int, ...], unit: int, budget: int, **options: bool) -> Config:
    checkpoint = options.pop("checkpoint", False)
    return Config(Geometry.of(append_only, states, unit=unit, checkpoint=checkpoint), budget, **options)  # type: ignore[arg-type]


SEED = config_of(512, (512,), 32, 8192)  # the example of the pull request that brought partial hits to vLLM


def test_the_example_of_the_pull_request() -> None:
    assert chunks(SEED, 10_000) == [8192, 1536, 256, 16]


@pytest.mark.parametrize(("start", "wanted", "length"), [(0, 8192, 8192), (8192, 1808, 1536), (9728, 272, 256), (9984, 16, 16)])
def test_each_chunk_of_the_example(start: int, wanted: int, length: int) -> None:
    assert Chunking(SEED).stop(start, wanted, 10_000, 10_000, 0) == (start + length, 0)


def test_a_start_inside_a_block_stops_at_its_end() -> None:
    assert chunks(SEED, 2000, start=96) == [416, 1024, 448, 16]


def test_a_short_budget_waits_for_a_larger_one() -> None:
    assert Chunking(SEED).stop(512, 100, 10_000, 10_000, 0) == (512, 0)


def test_a_block_wider_than_any_step_is_crossed_in_several_chunks() -> None:
    assert chunks(config_of(512, (512,), 32, 200), 1100) == [200, 200, 112, 200, 200, 112, 64, 12]


def test_a_junction_stops_on_the_grid_or_exactly() -> None:
    assert chunks(SEED, 2000, junction=1000) == [512, 1024, 448, 16]
    exact = config_of(512, (512,), 32, 8192, junctions=True)
    assert chunks(exact, 2000, junction=992) == [992, 32, 512, 448, 16]


def test_an_exported_checkpoint_needs_no_stop() -> None:
    exporting = config_of(512, (512,), 32, 8192, checkpoint=True)
    assert Chunking(exporting).stop(0, 2000, 2000, 2000, 0) == (2000, 1984)
    assert chunks(exporting, 500) == [480, 20]  # no slot between the first and the last state


def test_without_states_there_is_nothing_to_stop_for() -> None:
    assert chunks(config_of(16, (), 4, 100), 250) == [100, 100, 50]


def test_a_resumed_text_stops_at_its_own_last_block() -> None:
    assert chunks(SEED, 1000, known=1300) == [1024, 276]


def test_decoding_is_not_cut() -> None:
    assert Chunking(SEED).stop(10_000, 1, 10_000, 10_001, 0) == (10_001, 0)


def test_kept_positions() -> None:
    assert Chunking(SEED).kept(0, 10_000) == {9728, 9984}
    assert Chunking(SEED).kept(1000, 10_000) == {512, 9728, 9984}
    assert Chunking(SEED).kept(0, 20) == set()
