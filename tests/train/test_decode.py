"""Block decoding against plain greedy decoding, and the sums around it: cycles, loops, prompt lookup."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from tests.train.verifiers import HIDDEN, VOCAB, ScriptedDrafter, prompts, tiny_verifier
from trainer.blockwise import Decoded, block_decode, num_agreeing
from trainer.decode import measure_acceptance, summarise
from trainer.generate import greedy_responses
from trainer.lookup import NgramIndex, agreeing, count_lookup_cycles, is_looping
from trainer.model import Drafter
from trainer.model_config import DrafterConfig
from trainer.progress import Talk
from trainer.sections import DecodeConfig
from trainer.signals import StopRequested

QUIET = Talk(lambda _: None)
LENGTHS = (5, 11, 2, 8)


def small_drafter() -> Drafter:
    """An untrained drafter for the tiny verifier."""
    return Drafter(
        DrafterConfig(
            hidden_size=HIDDEN,
            intermediate_size=48,
            num_hidden_layers=2,
            num_attention_heads=4,
            num_key_value_heads=2,
            head_dim=8,
            vocab_size=VOCAB,
            num_target_layers=4,
            block_size=4,
            mask_token_id=VOCAB - 1,
            target_layer_ids=(0, 2),
            layer_types=("full_attention", "full_attention"),
        )
    )


def expected_cycles(num_prompt: int, num_response: int, *, block_size: int, wrong_every: int) -> int:
    """Cycles that a scripted drafter needs, counted position by position."""
    start, cycles, end = num_prompt, 0, num_prompt + num_response
    while start + 1 < end:
        kept = 0
        while kept < block_size - 1 and not (wrong_every and (start + 1 + kept) % wrong_every == 0):
            kept += 1
        start, cycles = start + kept + 1, cycles + 1
    return cycles


@pytest.mark.parametrize("rows", [1, 3, 8])
@pytest.mark.parametrize("eos", [None, 4])
def test_an_untrained_drafter_changes_no_token(rows: int, eos: int | None) -> None:
    verifier, asked = tiny_verifier(eos=eos), prompts(*LENGTHS)
    greedy = greedy_responses(verifier, asked, max_new_tokens=30, rows=4, talk=QUIET)
    decoded = block_decode(verifier, small_drafter(), asked, max_new_tokens=30, rows=rows)
    assert [list(one.tokens) for one in decoded] == greedy
    assert len({token for text in greedy for token in text}) > 10, "the text is too dull to show a mistake"


@pytest.mark.parametrize(("block_size", "wrong_every"), [(4, 0), (4, 5), (6, 3), (2, 1), (8, 7)])
@pytest.mark.parametrize("window", [None, 6])
def test_a_scripted_drafter_gains_exactly_what_its_script_says(
    block_size: int, wrong_every: int, window: int | None
) -> None:
    verifier, asked = tiny_verifier(sliding_window=window), prompts(*LENGTHS)
    greedy = greedy_responses(verifier, asked, max_new_tokens=33, rows=4, talk=QUIET)
    texts = [[*prompt.tolist(), *text] for prompt, text in zip(asked, greedy, strict=True)]
    drafter = ScriptedDrafter(verifier, texts, block_size=block_size, wrong_every=wrong_every)
    decoded = block_decode(verifier, drafter, asked, max_new_tokens=33, rows=3)
    assert [list(one.tokens) for one in decoded] == greedy
    assert [one.num_cycles for one in decoded] == [
        expected_cycles(length, 33, block_size=block_size, wrong_every=wrong_every) for length in LENGTHS
    ]


def test_a_draft_that_runs_past_the_end_of_the_response_is_cut_there() -> None:
    asked = prompts(*LENGTHS)
    free = greedy_responses(tiny_verifier(), asked, max_new_tokens=30, rows=4, talk=QUIET)
    place = max(place for place, token in enumerate(free[1]) if token not in free[1][:place])
    verifier = tiny_verifier(eos=free[1][place])
    texts = [[*prompt.tolist(), *text] for prompt, text in zip(asked, free, strict=True)]
    drafter = ScriptedDrafter(verifier, texts, block_size=8, wrong_every=0)
    decoded = block_decode(verifier, drafter, asked, max_new_tokens=30, rows=4)
    assert [list(one.tokens) for one in decoded] == greedy_responses(
        verifier, asked, max_new_tokens=30, rows=4, talk=QUIET
    )
    assert (len(decoded[1].tokens), decoded[1].num_cycles) == (place + 1, math.ceil(place / 8))
    assert place % 8, "the last draft must run past the end"


def test_the_drafter_sees_nothing_at_or_after_the_bonus_token() -> None:
    verifier, asked = tiny_verifier(), prompts(6, 3)
    answers = greedy_responses(verifier, asked, max_new_tokens=9, rows=2, talk=QUIET)
    texts = [[*prompt.tolist(), *answer] for prompt, answer in zip(asked, answers, strict=True)]
    drafter = ScriptedDrafter(verifier, texts, block_size=4, wrong_every=0)
    block_decode(verifier, drafter, asked, max_new_tokens=9, rows=2)
    assert [seen.tolist() for seen in drafter.seen_context] == [[6, 3], [10, 7]]


def test_a_real_drafter_guesses_the_same_alone_and_among_others() -> None:
    verifier, asked, drafter = tiny_verifier(), prompts(*LENGTHS), RecordingDrafter(small_drafter())
    block_decode(verifier, drafter, asked, max_new_tokens=12, rows=4)
    together = drafter.blocks
    for row, prompt in enumerate(asked):
        drafter.blocks = []
        block_decode(verifier, drafter, [prompt], max_new_tokens=12, rows=1)
        assert len(drafter.blocks) == 11, "an untrained drafter should gain nothing here"
        for alone_1bH, together_BbH in zip(drafter.blocks, together, strict=True):
            torch.testing.assert_close(alone_1bH[0], together_BbH[row], atol=1e-5, rtol=1e-4)


class RecordingDrafter:
    """A real drafter whose blocks are kept."""

    def __init__(self, drafter: Drafter) -> None:
        self.config, self.context_features = drafter.config, drafter.context_features
        self._drafter = drafter
        self.blocks: list[Tensor] = []

    def draft_block(self, *arguments: Tensor | None) -> Tensor:
        """Return what the drafter returns."""
        self.blocks.append(self._drafter.draft_block(*arguments))  # type: ignore[arg-type]  # passed through
        return self.blocks[-1]


def test_measuring_stops_when_asked() -> None:
    with pytest.raises(StopRequested):
        measure_acceptance(
            tiny_verifier(), small_drafter(), prompts(3), DecodeConfig(max_new_tokens=4), should_stop=lambda: True
        )


def test_a_report_holds_plain_numbers_that_agree() -> None:
    report = measure_acceptance(tiny_verifier(), small_drafter(), prompts(*LENGTHS), DecodeConfig(max_new_tokens=20))
    record = report.as_record()
    assert all(type(value) in (int, float) for value in record.values())
    assert record["num_prompts"] == 4
    assert record["num_tokens"] == 80
    assert record["tau"] == pytest.approx((80 - 4) / record["num_cycles"])


def test_agreement_ends_at_the_first_difference() -> None:
    draft, choices = torch.tensor([[1, 2, 3], [1, 9, 3], [9, 2, 3]]), torch.tensor([[1, 2, 3]] * 3)
    assert num_agreeing(draft, choices).tolist() == [3, 1, 0]


# The sums.

LOOPING = Decoded(tuple([7] * 41), 10)
PLAIN = Decoded(tuple(range(10, 51)), 20)


def test_tau_is_weighted_by_tokens_and_leaves_looping_prompts_out_where_it_says_so() -> None:
    report = summarise([[1, 2], [3, 4]], [LOOPING, PLAIN], DecodeConfig(max_new_tokens=41), block_size=5)
    assert report.tau == pytest.approx(80 / 30)
    assert report.tau_not_looping == pytest.approx(40 / 20)
    assert report.looping_share == 0.5
    assert report.lookup_tau_not_looping == pytest.approx(40 / 40)
    assert report.lookup_tau == pytest.approx(
        80 / (1 + 8 + 40)
    )  # one to see 7 twice, then four more and the bonus each


def test_a_response_of_one_token_counts_no_cycle() -> None:
    report = summarise([[1]], [Decoded((5,), 0)], DecodeConfig(), block_size=4)
    assert (report.tau, report.lookup_tau, report.looping_share) == (0.0, 0.0, 0.0)


@pytest.mark.parametrize(
    ("tokens", "looping"),
    [
        ([1] * 9, True),
        ([1] * 8, False),  # the first token repeats nothing
        ([0, 1, 2, 3, *[4, 5, 6] * 4, 9], True),
        ([4, 5, 6, 7] * 3, True),
        ([4, 5, 6, 7, 8] * 3, False),  # the period is too long
        ([*[1, 2] * 4, 3, *[1, 2] * 4], False),  # broken in the middle
        ([], False),
    ],
)
def test_a_loop_is_a_run_of_repeats_at_one_short_distance(tokens: list[int], looping: bool) -> None:
    assert is_looping(tokens, max_period=4, min_repeated=8) is looping


def test_lookup_takes_the_longest_and_then_the_latest_match() -> None:
    index = NgramIndex(max_ngram=2)
    for token in [1, 2, 3, 9, 2, 4, 1, 2, 5, 7, 2]:
        index.append(token)
    assert index.draft(3) == [5, 7, 2]  # only "2" matches, and last before "5"
    index.append(4)
    assert index.draft(3) == [1, 2, 5]  # "2 4" matches
    index.append(4)
    assert index.draft(3) == [4, 4, 4]  # what follows the match is one token, so far
    assert NgramIndex(max_ngram=2).draft(3) == []


@given(st.lists(st.integers(0, 2), min_size=1, max_size=40), st.integers(2, 5), st.integers(1, 3))
def test_lookup_cycles_equal_those_of_a_plain_search(tokens: list[int], block_size: int, max_ngram: int) -> None:
    num_prompt = max(1, len(tokens) // 3)
    prompt, response = tokens[:num_prompt], tokens[num_prompt:]
    counted = count_lookup_cycles(prompt, response, block_size=block_size, max_ngram=max_ngram)
    assert counted == plain_lookup_cycles(prompt, response, block_size, max_ngram)


def plain_lookup_cycles(prompt: list[int], response: list[int], block_size: int, max_ngram: int) -> int:
    """Count cycles by searching the whole text at each."""
    done, cycles = 1, 0
    while done < len(response):
        known = [*prompt, *response[:done]]
        draft: list[int] = []
        for size in range(min(max_ngram, len(known) - 1), 0, -1):
            ends = [end for end in range(size, len(known)) if known[end - size : end] == known[-size:]]
            if ends:
                draft = ([*known[ends[-1] :]] * block_size)[: block_size - 1]
                break
        done += agreeing(draft, response[done:]) + 1
        cycles += 1
    return cycles


@pytest.mark.parametrize("key", ["rows", "lookup_max_ngram", "loop_max_period", "loop_min_repeated", "max_new_tokens"])
def test_choices_that_make_no_sense_are_refused_by_name(key: str) -> None:
    with pytest.raises(ValueError, match=key):
        DecodeConfig(**{key: 0})
