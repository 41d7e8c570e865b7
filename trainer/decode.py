"""Acceptance length: what a drafter gains on held-out prompts, beside what looking up earlier text gains for nothing.

Decoding itself is `trainer.blockwise`; here are the choices, the sums and the report.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from torch import Tensor

from trainer.blockwise import BlockDrafter, Decoded, block_decode
from trainer.lookup import count_lookup_cycles, is_looping
from trainer.progress import ShouldStop, never
from trainer.sections import DecodeConfig
from trainer.verifier import Verifier


@dataclass(frozen=True)
class DecodeReport:
    """Acceptance over prompts: tokens gained a verification (accepted + bonus), token for token, so 1 means no gain.

    `lookup_*` is prompt lookup on the same responses; `*_not_looping` leaves out responses that loop (0 if all do).
    """

    tau: float
    tau_not_looping: float
    lookup_tau: float
    lookup_tau_not_looping: float
    looping_share: float
    num_prompts: int
    num_tokens: int
    num_cycles: int
    seconds: float

    def as_record(self) -> dict[str, Any]:
        """Return the fields as plain numbers."""
        return asdict(self)


def measure_acceptance(
    verifier: Verifier,
    drafter: BlockDrafter,
    prompts: Sequence[Tensor],
    config: DecodeConfig,
    *,
    should_stop: ShouldStop = never,
) -> DecodeReport:
    """Decode all prompts and return how far the drafter, and prompt lookup, get a verification."""
    began = time.perf_counter()
    decoded = block_decode(
        verifier, drafter, prompts, max_new_tokens=config.max_new_tokens, rows=config.rows, should_stop=should_stop
    )
    return summarise(
        [prompt.tolist() for prompt in prompts],
        decoded,
        config,
        block_size=drafter.config.block_size,
        seconds=time.perf_counter() - began,
    )


def summarise(
    prompts: Sequence[Sequence[int]],
    decoded: Sequence[Decoded],
    config: DecodeConfig,
    *,
    block_size: int,
    seconds: float = 0.0,
) -> DecodeReport:
    """Return the report of decoded prompts. Pure."""
    lookup = [
        Decoded(
            one.tokens,
            count_lookup_cycles(prompt, one.tokens, block_size=block_size, max_ngram=config.lookup_max_ngram),
        )
        for prompt, one in zip(prompts, decoded, strict=True)
    ]
    loops = [
        is_looping(one.tokens, max_period=config.loop_max_period, min_repeated=config.loop_min_repeated)
        for one in decoded
    ]
    return DecodeReport(
        tau=_tau(decoded),
        tau_not_looping=_tau([one for one, looping in zip(decoded, loops, strict=True) if not looping]),
        lookup_tau=_tau(lookup),
        lookup_tau_not_looping=_tau([one for one, looping in zip(lookup, loops, strict=True) if not looping]),
        looping_share=sum(loops) / max(1, len(loops)),
        num_prompts=len(decoded),
        num_tokens=sum(len(one.tokens) for one in decoded),
        num_cycles=sum(one.num_cycles for one in decoded),
        seconds=seconds,
    )


def _tau(decoded: Sequence[Decoded]) -> float:
    cycles = sum(one.num_cycles for one in decoded)
    return sum(len(one.tokens) - 1 for one in decoded) / cycles if cycles else 0.0
