"""The sections of a recipe, each a dataclass that refuses what is wrong in itself. No torch: it is told at once."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from trainer.byte_tokenizer import VOCAB_SIZE
from trainer.shape import VerifierShape

MAX_POSITIONS = 4096  # of the demo's verifier
_PAPER_GAMMA = {16: 7.0, 10: 5.0, 8: 4.0}


def _at_least_one(section: object, *names: str) -> None:
    """Raise ValueError for a count of a section that is none."""
    for name in names:
        if getattr(section, name) < 1:
            raise ValueError(f"{name} must be at least 1")


@dataclass(frozen=True, kw_only=True)
class DemoVerifierConfig:
    """Sizes and training of the demo's verifier. `steps` decide, not seconds; each row is `row_tokens` bytes."""

    hidden_size: int = 192
    intermediate_size: int = 768
    num_hidden_layers: int = 4
    num_attention_heads: int = 3
    num_key_value_heads: int = 1
    steps: int = 350
    rows: int = 8
    row_tokens: int = 256
    muon_lr: float = 0.02
    adamw_lr: float = 3e-3
    warmup: float = 0.05
    decay: float = 0.5
    report_every: int = 10
    seed: int = 0

    def __post_init__(self) -> None:
        _at_least_one(self, "hidden_size", "num_hidden_layers", "steps", "rows", "row_tokens", "report_every")
        if self.hidden_size % (2 * self.num_attention_heads):
            raise ValueError("hidden_size must be an even multiple of num_attention_heads")
        if self.num_attention_heads % self.num_key_value_heads:
            raise ValueError("num_attention_heads must be a multiple of num_key_value_heads")
        if not 0 <= self.warmup <= 1 or not 0 <= self.decay <= 1:
            raise ValueError("warmup and decay are shares of the steps, from 0 to 1")

    def shape(self) -> VerifierShape:
        """Return the sizes of the model; what has no key here is what a Llama has unless told."""
        return VerifierShape(
            hidden_size=self.hidden_size,
            vocab_size=VOCAB_SIZE,
            num_hidden_layers=self.num_hidden_layers,
            num_attention_heads=self.num_attention_heads,
            num_key_value_heads=self.num_key_value_heads,
            head_dim=self.hidden_size // self.num_attention_heads,
            intermediate_size=self.intermediate_size,
            rope_theta=1e4,
            rms_norm_eps=1e-6,
            max_position_embeddings=MAX_POSITIONS,
        )


@dataclass(frozen=True, kw_only=True)
class VerifierConfig:
    """Which language model to draft for: a local Hugging Face folder, or, without `path`, the demo's own.

    `path` may be a name on the Hugging Face hub only if `allow_download` is true. With `hidden_states: stored` what the
    drafter reads of it is computed once, kept below `corpus.data_dir`, and read from there by every step: the verifier
    then takes no memory while training.
    """

    path: str | None = None
    allow_download: bool = False
    hidden_states: Literal["online", "stored"] = "online"
    demo: DemoVerifierConfig = field(default_factory=DemoVerifierConfig)

    def __post_init__(self) -> None:
        if self.path == "":
            raise ValueError("path must be a folder; leave it out for the demo's verifier")
        if self.allow_download and self.path is None:
            raise ValueError("allow_download makes sense only with path")


@dataclass(frozen=True, kw_only=True)
class CorpusConfig:
    """What to train on. `source: python` is text that Python ships; `jsonl` is the file at `path`.

    With `responses: verifier` prompts of at most `prompt_tokens` are answered by the verifier, greedily, with at most
    `response_tokens`, and only answers are supervised; `corpus` takes documents as they are. One in `held_out_one_in`
    documents is kept for measuring: `num_eval_prompts` prompts are taken from those. `data_dir` keeps what was made.
    """

    data_dir: Path = Path("data")
    source: Literal["python", "jsonl"] = "python"
    path: Path | None = None
    responses: Literal["verifier", "corpus"] = "verifier"
    num_prompts: int = 2048
    prompt_tokens: int = 64
    response_tokens: int = 128
    generate_rows: int = 128
    num_eval_prompts: int = 32
    held_out_one_in: int = 12
    seed: int = 0

    def __post_init__(self) -> None:
        _at_least_one(self, "num_prompts", "prompt_tokens", "response_tokens", "generate_rows", "num_eval_prompts")
        if self.held_out_one_in < 2:
            raise ValueError("held_out_one_in must be at least 2: something must be left to train on")
        if (self.source == "jsonl") != (self.path is not None):
            raise ValueError("path must be given with source: jsonl, and only then")


@dataclass(frozen=True, kw_only=True)
class DataConfig:
    """Shape of every batch of one rank: `rows` packed rows of `row_tokens` tokens; `pad_id` fills what is left."""

    rows: int = 1
    row_tokens: int = 3072
    pad_id: int = 0

    def __post_init__(self) -> None:
        _at_least_one(self, "rows", "row_tokens")
        if self.pad_id < 0:
            raise ValueError("pad_id must not be negative")


@dataclass(frozen=True, kw_only=True)
class AnchorsConfig:
    """How many blocks a row trains."""

    per_row: int = 64

    def __post_init__(self) -> None:
        _at_least_one(self, "per_row")


@dataclass(frozen=True, kw_only=True)
class LossConfig:
    """Decay of the slot weights (None: by block size) and slots a chunk of the vocabulary projection."""

    gamma: float | None = None
    chunk_slots: int = 512

    def __post_init__(self) -> None:
        if self.gamma is not None and self.gamma <= 0:
            raise ValueError("gamma must be positive")
        _at_least_one(self, "chunk_slots")

    def gamma_for(self, block_size: int) -> float:
        """Return gamma; where the recipe leaves it open, the published value, or half a block less a slot."""
        return self.gamma if self.gamma is not None else _PAPER_GAMMA.get(block_size, max(1.0, block_size / 2 - 0.5))


@dataclass(frozen=True, kw_only=True)
class OptimConfig:
    """AdamW and schedule; `warmup_share` is of all steps, `final_lr_share` of `lr`."""

    lr: float = 6e-4
    beta1: float = 0.9
    beta2: float = 0.95
    eps: float = 1e-8
    weight_decay: float = 0.0
    warmup_share: float = 0.04
    final_lr_share: float = 0.1
    clip_norm: float = 1.0

    def __post_init__(self) -> None:
        if self.lr <= 0 or self.clip_norm <= 0:
            raise ValueError("lr and clip_norm must be positive")
        if not 0 <= self.warmup_share <= 1 or not 0 <= self.final_lr_share <= 1:
            raise ValueError("warmup_share and final_lr_share must be between 0 and 1")


@dataclass(frozen=True, kw_only=True)
class CompileConfig:
    """How the step is compiled. `cuda_graphs` replays its kernels as CUDA graphs: less launching, more memory."""

    cuda_graphs: bool = False


@dataclass(frozen=True, kw_only=True)
class DecodeConfig:
    """How acceptance is measured. A response loops if `loop_min_repeated` tokens in a row repeat what stood a fixed
    distance of at most `loop_max_period` before. Prompt lookup matches at most `lookup_max_ngram` tokens."""

    max_new_tokens: int = 256
    rows: int = 32
    lookup_max_ngram: int = 4
    loop_max_period: int = 32
    loop_min_repeated: int = 32

    def __post_init__(self) -> None:
        _at_least_one(self, "rows", "lookup_max_ngram", "loop_max_period", "loop_min_repeated")
        if self.max_new_tokens < 2:
            raise ValueError("max_new_tokens must be at least 2: the first token comes with the prompt, undrafted")


@dataclass(frozen=True, kw_only=True)
class CheckpointConfig:
    """When to save (0: only at the end and when stopped) and how many of the newest to keep."""

    every_steps: int = 0
    keep: int = 2

    def __post_init__(self) -> None:
        if self.every_steps < 0 or self.keep < 1:
            raise ValueError("every_steps must not be negative and keep must be at least 1")


@dataclass(frozen=True, kw_only=True)
class LogConfig:
    """Every how many steps a line is printed for people; the file has every step."""

    every_steps: int = 10

    def __post_init__(self) -> None:
        _at_least_one(self, "every_steps")
