"""The order in which the stages of a pipeline run the passes of their micro batches."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Final, NamedTuple

FORWARD: Final = "forward"
BACKWARD: Final = "backward"  # with `zero-bubble`: the gradients of inputs only
WEIGHTS: Final = "weights"  # with `zero-bubble`: the gradients of weights


class Turn(NamedTuple):
    """A pass of one micro batch (number `k`) over a part (`chunk`) of the model on a stage."""

    phase: str
    chunk: int
    k: int


@functools.lru_cache(maxsize=64)
def orders(kind: str, stages: int, passes: int, chunks: int = 1) -> Sequence[Sequence[Turn]]:
    """Return for each stage its turns, in order. `interleaved` needs `passes` that are a multiple of `stages`."""
    if kind == "zero-bubble":
        return _zero_bubble(stages, passes)
    if kind == "interleaved":
        return [_interleaved(stage, stages, passes, chunks) for stage in range(stages)]
    early = [passes if kind == "gpipe" else min(stages - 1 - stage, passes) for stage in range(stages)]
    turns = [(Turn(FORWARD, 0, k), Turn(BACKWARD, 0, k)) for k in range(passes)]
    return [_alternating([f for f, _ in turns], [b for _, b in turns], ahead) for ahead in early]


def _alternating(forward: list[Turn], backward: list[Turn], early: int) -> list[Turn]:
    """Return `early` forward turns, then forward and backward turns one by one."""
    order = forward[:early]
    for number, turn in enumerate(backward):
        order += [*forward[early + number : early + number + 1], turn]
    return order


def _interleaved(stage: int, stages: int, passes: int, chunks: int) -> list[Turn]:
    """Return Megatron's order: groups of `stages` micro batches pass the chunks of a rank one after the other."""
    total = passes * chunks
    early = total if passes == stages else min(total, 2 * (stages - stage - 1) + (chunks - 1) * stages)

    def turn(phase: str, number: int) -> Turn:
        group, place = divmod(number, stages * chunks)
        chunk, k = divmod(place, stages)
        return Turn(phase, chunk if phase == FORWARD else chunks - 1 - chunk, group * stages + k)

    forward, backward = ([turn(phase, number) for number in range(total)] for phase in (FORWARD, BACKWARD))
    return _alternating(forward, backward, early)


def _zero_bubble(stages: int, passes: int) -> list[list[Turn]]:
    """Return the order ZB-H1 (Qi et al., Zero Bubble Pipeline Parallelism, 2023): a stage holds as many micro batches
    as in 1F1B, and computes the gradients of weights when nothing else can run. The order is that of passes which all
    take one unit of time."""
    done: dict[tuple[int, str, int], int] = {}  # stage, phase, micro batch -> the time when it ends
    order: list[list[Turn]] = [[] for _ in range(stages)]
    count = [dict.fromkeys((FORWARD, BACKWARD, WEIGHTS), 0) for _ in range(stages)]
    now = 0
    while any(each[WEIGHTS] < passes for each in count):
        for stage, had in enumerate(count):
            f, b, w = had[FORWARD], had[BACKWARD], had[WEIGHTS]
            behind = (stage + 1, BACKWARD, b) if stage < stages - 1 else (stage, FORWARD, b)
            if b < passes and done.get(behind, now + 1) <= now:
                phase = BACKWARD
            elif (
                f < passes
                and f - w < stages - stage
                and (not stage or done.get((stage - 1, FORWARD, f), now + 1) <= now)
            ):
                phase = FORWARD
            elif w < b:
                phase = WEIGHTS
            else:
                continue
            order[stage].append(Turn(phase, 0, had[phase]))
            done[stage, phase, had[phase]] = now + 1
            had[phase] += 1
        now += 1
    return order


@functools.lru_cache(maxsize=1024)
def held(kind: str, stages: int, passes: int, chunks: int, stage: int) -> int:
    """Return the largest number of micro batches and chunks whose activations a stage holds at a time."""
    last, most, now = (WEIGHTS if kind == "zero-bubble" else BACKWARD), 0, 0
    for turn in orders(kind, stages, passes, chunks)[stage]:
        now += (turn.phase == FORWARD) - (turn.phase == last)
        most = max(most, now)
    return most
