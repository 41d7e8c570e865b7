"""The demo's verifier: a small byte-level language model trained on the spot, saved as an ordinary Hugging Face folder.

Training is eager on purpose: compiling costs more than two minutes of it would gain. Legend: B rows, S tokens a row.
"""

from __future__ import annotations

import shutil
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
import transformers
from torch import Tensor, nn

from trainer.byte_tokenizer import BEGIN_ID, END_ID, VOCAB_SIZE, byte_tokenizer
from trainer.files import sync_file, sync_folder
from trainer.progress import Progress, Talk
from trainer.sections import MAX_POSITIONS, DemoVerifierConfig

HF: Any = transformers  # it ships types for a part of itself only


def model_config(config: DemoVerifierConfig) -> Any:
    """Return the Hugging Face config of the demo's verifier."""
    return HF.LlamaConfig(
        vocab_size=VOCAB_SIZE,
        hidden_size=config.hidden_size,
        intermediate_size=config.intermediate_size,
        num_hidden_layers=config.num_hidden_layers,
        num_attention_heads=config.num_attention_heads,
        num_key_value_heads=config.num_key_value_heads,
        max_position_embeddings=MAX_POSITIONS,
        tie_word_embeddings=True,
        bos_token_id=BEGIN_ID,
        eos_token_id=END_ID,
        attn_implementation="sdpa",
    )


def train_demo_verifier(config: DemoVerifierConfig, documents: Sequence[Tensor], *, talk: Talk) -> nn.Module:
    """Return a language model trained on the documents' tokens; raises StopRequested when asked to stop."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(config.seed)
        model: nn.Module = HF.LlamaForCausalLM(model_config(config))
    stream_T = torch.cat([_framed(document) for document in documents])
    if len(stream_T) <= config.row_tokens:
        raise ValueError(f"row_tokens {config.row_tokens} is more than the {len(stream_T)} tokens of text there are")
    generator = torch.Generator().manual_seed(config.seed)
    optimizers = _optimizers(model, config)
    began = time.perf_counter()
    for step in range(1, config.steps + 1):
        talk.raise_if_stopped("training the demo's verifier")
        loss = _step(model, optimizers, config, step, _windows(stream_T, config, generator))
        if step % config.report_every == 0 or step == config.steps:
            now = time.perf_counter()
            num_steps = (step - 1) % config.report_every + 1
            rate = num_steps * config.rows * config.row_tokens / (now - began)
            talk.report(Progress("verifier", step, config.steps, float(loss), rate))
            began = now
    return model.eval()


def _framed(document: Tensor) -> Tensor:
    return F.pad(F.pad(document, (1, 0), value=BEGIN_ID), (0, 1), value=END_ID)


def _windows(stream_T: Tensor, config: DemoVerifierConfig, generator: torch.Generator) -> Tensor:
    """Return rows [B, S + 1] cut from the stream at random places."""
    starts_B = torch.randint(len(stream_T) - config.row_tokens, (config.rows,), generator=generator)
    return torch.stack([stream_T[start : start + config.row_tokens + 1] for start in starts_B.tolist()])


def _optimizers(model: nn.Module, config: DemoVerifierConfig) -> list[torch.optim.Optimizer]:
    """Muon for the matrices of the layers, since it needs half the steps that AdamW does; AdamW for the rest."""
    matrices = [p for name, p in model.named_parameters() if p.dim() == 2 and "embed" not in name]
    others = [p for name, p in model.named_parameters() if p.dim() != 2 or "embed" in name]
    return [
        torch.optim.Muon(matrices, lr=config.muon_lr, weight_decay=0.0),
        torch.optim.AdamW(others, lr=config.adamw_lr, betas=(0.9, 0.95), weight_decay=0.0),
    ]


def _step(
    model: nn.Module,
    optimizers: Sequence[torch.optim.Optimizer],
    config: DemoVerifierConfig,
    step: int,
    tokens_BS: Tensor,
) -> Tensor:
    logits_BSV = model(input_ids=tokens_BS[:, :-1], use_cache=False).logits
    loss = F.cross_entropy(logits_BSV.flatten(0, 1), tokens_BS[:, 1:].flatten())
    torch.autograd.backward(loss)
    nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    for optimizer, peak in zip(optimizers, (config.muon_lr, config.adamw_lr), strict=True):
        optimizer.param_groups[0]["lr"] = peak * schedule(step, config)
        optimizer.step()
        optimizer.zero_grad()
    return loss.detach()


def schedule(step: int, config: DemoVerifierConfig) -> float:
    """Return the share of the peak rate at a step counted from 1: a rise, a plateau, and a fall to a fiftieth."""
    rise = step / max(1.0, config.warmup * config.steps)
    fall = (config.steps - step + 1) / max(1.0, config.decay * config.steps)
    return min(1.0, rise, max(0.02, fall))


def save_folder(model: Any, folder: Path) -> None:
    """Write model and tokenizer as a Hugging Face folder, all of it or none: beside, flushed, renamed."""
    part = folder.with_name(folder.name + ".part")
    shutil.rmtree(part, ignore_errors=True)
    part.mkdir(parents=True)
    HF.utils.logging.disable_progress_bar()  # a log is no terminal
    model.save_pretrained(part)
    byte_tokenizer().save_pretrained(part)
    for path in part.iterdir():
        sync_file(path)
    sync_folder(part)
    part.rename(folder)
    sync_folder(folder.parent)
