"""The verifier against transformers' own forward and generation: what is captured, who sees whom, what is refused."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from torch import Tensor

from tests.train.verifiers import HIDDEN, VOCAB, prompts, tiny_model, tiny_verifier
from trainer.batch import ROW_PADDING, Batch
from trainer.errors import ConfigError
from trainer.generate import greedy_responses
from trainer.progress import Progress, Talk
from trainer.sections import VerifierConfig
from trainer.shape import VerifierShape
from trainer.signals import StopRequested
from trainer.verifier import Verifier, document_positions, verifier_shape
from trainer.verifier_path import check_path

HF: Any = transformers
QUIET = Talk(lambda _: None)
DOCUMENTS = ((0, 7), (1, 12), (2, 1), (ROW_PADDING, 4))


def packed_batch() -> Batch:
    """One row of three documents and padding, and one row of a single document."""
    ids_BS = torch.randint(VOCAB, (2, 24))
    row = torch.cat([torch.full((length,), number) for number, length in DOCUMENTS])
    return Batch(ids_BS, torch.ones_like(ids_BS), torch.stack((row, torch.zeros_like(row))))


def lone_hidden(model: Any, ids_S: Tensor, layer: int) -> Tensor:
    """What transformers says layer `layer` puts out for a text by itself."""
    states: Tensor = model(ids_S[None], output_hidden_states=True).hidden_states[layer + 1][0]
    return states


@pytest.mark.parametrize("window", [None, 5])
def test_packed_documents_are_as_if_alone(window: int | None) -> None:
    verifier, batch = tiny_verifier((2, 0), sliding_window=window), packed_batch()
    hidden_BSC = verifier.hidden(batch)
    assert hidden_BSC.shape == (2, 24, 2 * HIDDEN)
    assert hidden_BSC.isfinite().all()
    for row, start, end in ((0, 0, 7), (0, 7, 19), (0, 19, 20), (1, 0, 24)):
        ids_S = batch.input_ids_BS[row, start:end]
        expected = torch.cat([lone_hidden(verifier.model, ids_S, layer) for layer in (2, 0)], dim=-1)
        torch.testing.assert_close(hidden_BSC[row, start:end], expected, atol=2e-5, rtol=1e-5)


def test_the_last_layer_is_captured_before_the_final_norm() -> None:
    model, batch = tiny_model(), packed_batch()
    hidden_SC = Verifier(model, (3,)).hidden(batch)[1]
    normed_SH = model(batch.input_ids_BS[1:], output_hidden_states=True).hidden_states[-1][0]
    assert not torch.allclose(hidden_SC, normed_SH, atol=0.1)
    torch.testing.assert_close(model.model.norm(hidden_SC), normed_SH, atol=2e-5, rtol=1e-5)


def test_positions_restart_with_each_document() -> None:
    ids_BS = torch.tensor([[0, 0, 1, 1, 1, ROW_PADDING], [4, 4, 4, 4, 4, 4]])
    assert document_positions(ids_BS).tolist() == [[0, 1, 0, 1, 2, 0], [0, 1, 2, 3, 4, 5]]


@pytest.mark.parametrize("window", [None, 6])
def test_greedy_text_is_that_of_transformers(window: int | None) -> None:
    verifier, asked = tiny_verifier(sliding_window=window), prompts(9, 3, 14, 3, 1)
    mine = greedy_responses(verifier, asked, max_new_tokens=20, rows=3, talk=QUIET)
    for prompt, response in zip(asked, mine, strict=True):
        ones = torch.ones_like(prompt[None])  # said, or a token equal to the padding token is taken for padding
        whole = verifier.model.generate(prompt[None], attention_mask=ones, max_new_tokens=20, do_sample=False)
        assert response == whole[0, len(prompt) :].tolist()


def test_a_response_ends_with_its_end_token() -> None:
    free = greedy_responses(tiny_verifier(), prompts(4, 6, 8), max_new_tokens=20, rows=3, talk=QUIET)
    end = free[1][7]
    ended = greedy_responses(tiny_verifier(eos=end), prompts(4, 6, 8), max_new_tokens=20, rows=3, talk=QUIET)
    assert ended == [text[: text.index(end) + 1] if end in text else text for text in free]
    assert len(ended[1]) <= 8


def test_generation_reports_and_stops() -> None:
    reports: list[Progress] = []
    greedy_responses(tiny_verifier(), prompts(2, 3, 4), max_new_tokens=5, rows=2, talk=Talk(print, reports.append))
    assert [(one.phase, one.step, one.num_steps) for one in reports] == [("responses", 2, 3), ("responses", 3, 3)]
    with pytest.raises(StopRequested):
        greedy_responses(
            tiny_verifier(), prompts(2), max_new_tokens=5, rows=2, talk=Talk(print, should_stop=lambda: True)
        )


def test_nothing_is_compiled_behind_the_callers_back() -> None:
    from torch._dynamo.utils import counters

    before = dict(counters["stats"])
    torch.compiler.set_stance("fail_on_recompile")
    verifier = tiny_verifier()
    verifier.hidden(packed_batch())
    greedy_responses(verifier, prompts(2, 3), max_new_tokens=4, rows=2, talk=QUIET)
    assert dict(counters["stats"]) == before


def test_hidden_states_carry_no_gradient_but_may_be_saved_for_one() -> None:
    hidden_BSC = tiny_verifier().hidden(packed_batch())
    weight = torch.ones(2 * HIDDEN, requires_grad=True)
    (hidden_BSC @ weight).sum().backward()
    assert not hidden_BSC.requires_grad
    assert weight.grad is not None


def test_a_saved_folder_loads_with_its_shape(tmp_path: Path) -> None:
    model = tiny_model()
    model.save_pretrained(tmp_path)
    verifier = Verifier.load(tmp_path, (1,))
    assert verifier.embed_tokens.equal(model.model.embed_tokens.weight)
    assert verifier.lm_head.equal(model.lm_head.weight)
    assert not any(parameter.requires_grad for parameter in verifier.model.parameters())
    assert verifier.shape == verifier_shape(VerifierConfig(path=str(tmp_path)))
    assert verifier.shape == VerifierShape(
        hidden_size=HIDDEN,
        vocab_size=VOCAB,
        num_hidden_layers=4,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=8,
        intermediate_size=48,
        rope_theta=10000.0,
        rms_norm_eps=1e-6,
        max_position_embeddings=256,
    )


@pytest.mark.parametrize("path", ["no/such/folder", "some-org/some-model"])
def test_a_path_that_is_no_folder_is_refused_unless_downloads_are_allowed(path: str) -> None:
    with pytest.raises(ConfigError, match=r"verifier\.path: .* is not a folder with a config\.json"):
        check_path(VerifierConfig(path=path))
    assert check_path(VerifierConfig(path=path, allow_download=True)) == path


def test_a_folder_without_weights_is_refused(tmp_path: Path) -> None:
    tiny_model().config.save_pretrained(tmp_path)
    with pytest.raises(ConfigError, match=r"verifier\.path: cannot load"):
        Verifier.load(tmp_path, (0,))


def test_layers_beyond_the_verifier_are_refused() -> None:
    with pytest.raises(ConfigError, match=r"target_layer_ids \[0, 4\] must name layers of the verifier, 0 to 3"):
        Verifier(tiny_model(), (0, 4))


def test_layers_that_packing_cannot_isolate_are_refused() -> None:
    model = tiny_model()
    model.config.layer_types = ["full_attention", "linear_attention", "full_attention", "full_attention"]
    with pytest.raises(ConfigError, match="layers of kind linear_attention are not supported"):
        Verifier(model, (0,))


@pytest.mark.parametrize("choices", [{"path": ""}, {"allow_download": True}])
def test_contradicting_choices_are_refused(choices: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match="path"):
        VerifierConfig(**choices)
