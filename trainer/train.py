"""Trains a drafter, from a recipe to a result: prepare, load, compile, evaluate, train, evaluate.

The run directory is the working directory; it gets recipe.yaml, metrics.jsonl, checkpoints/ and result.json.
A stop request drops whatever phase is on, except a training step or a checkpoint, and always leaves a checkpoint of the
last step behind if there is a step to keep.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from trainer.anchors import draw_anchors
from trainer.blocks import IGNORED
from trainer.checkpoint import TrainState, find_checkpoint, load_checkpoint, save_checkpoint
from trainer.compile import CompileError, Counters, Discipline
from trainer.config import to_yaml
from trainer.data import PackedRows
from trainer.decode import measure_acceptance
from trainer.device import resolve_device
from trainer.errors import ConfigError, NonFiniteError, TrainerError
from trainer.files import write_atomically
from trainer.loss import accept_lengths
from trainer.metrics import MetricsFile, compile_fields, memory_allocated_mib, say, step_line
from trainer.model import Drafter
from trainer.optim import clip_gradients, learning_rate, make_optimizer, set_learning_rate
from trainer.prepare import Prepared, prepare
from trainer.progress import Progress, Talk
from trainer.recipe import Recipe
from trainer.result import Result
from trainer.signals import StopRequested, StopSignals
from trainer.step import Frozen, Functions, StepInputs, spread_slots, step_loss
from trainer.verifier import Verifier
from trainer.warmup import StepShape, compile_step, warm_step


def train(recipe: Recipe, *, folder: Path, signals: StopSignals) -> int:
    """Run the recipe in `folder` and return the exit status; the result file is written however it ends."""
    write_atomically(folder / "recipe.yaml", to_yaml(recipe).encode())
    result = Result(name=recipe.name, num_steps=recipe.steps)
    started_at = time.monotonic()
    with MetricsFile(folder / "metrics.jsonl", num_steps=recipe.steps) as metrics:
        trainer = Trainer(recipe, folder=folder, signals=signals, metrics=metrics, result=result)
        try:
            trainer.run()
            result.finish()
        except StopRequested as stop:
            trainer.keep_last_step()
            result.stop(str(stop))
        except (TrainerError, CompileError) as error:
            result.fail(error, error.exit_code)
            say(f"{recipe.name}: {error}")
        except BaseException as error:
            result.fail(error, 1)
            raise
        finally:
            result.seconds = round(time.monotonic() - started_at, 2)
            result.phase, result.counters = metrics.phase, asdict(trainer.counters())
            result.write(folder)
            metrics.begin("end", status=result.status, exit_code=result.exit_code)
    say(closing_line(result))
    assert result.exit_code is not None
    return result.exit_code


def closing_line(result: Result) -> str:
    """Return the last line for people."""
    where = f", checkpoint {result.checkpoint}" if result.checkpoint else ""
    why = f" ({result.cause})" if result.status == "stopped" else ""
    return f"{result.name}: {result.status}{why} after step {result.steps}/{result.num_steps}{where}"


@dataclass(frozen=True)
class Parts:
    """What a training step works with, built once."""

    verifier: Verifier
    frozen: Frozen
    drafter: Drafter
    optimizer: torch.optim.Optimizer
    functions: Functions
    rows: PackedRows
    shape: StepShape
    gamma: float


@dataclass(frozen=True)
class StepFigures:
    """The figures of one step; loss is None where no slot of the batch was supervised."""

    loss: float | None
    grad_norm: float | None
    accept_len: float | None
    num_slots: int


class Trainer:
    """The phases of one run, in order; it holds what they pass on."""

    def __init__(
        self, recipe: Recipe, *, folder: Path, signals: StopSignals, metrics: MetricsFile, result: Result
    ) -> None:
        self.recipe, self.folder, self.signals, self.metrics, self.result = recipe, folder, signals, metrics, result
        self.state = TrainState()
        self._parts: Parts | None = None
        self._discipline: Discipline | None = None
        self._saved_step = 0
        self._train_s = 0.0
        self._tokens_here = 0

    def run(self) -> None:
        """Do all phases; raises StopRequested, TrainerError or CompileError."""
        self._discipline = Discipline()
        device = resolve_device(self.recipe.device)
        config, shape = self.recipe.drafter_config(), self.recipe.step_shape(device)
        prepared = self._prepare(device, shape)
        self._begin("verifier")
        verifier = Verifier.load(
            prepared.verifier_path,
            config.target_layer_ids,
            device=device,
            dtype=shape.dtype,
            allow_download=self.recipe.verifier.allow_download,
        )
        torch.manual_seed(self.recipe.seed)
        drafter = Drafter(config).to(device)
        parts = self._parts = Parts(
            verifier=verifier,
            # Plain tensors: to the compiler a Parameter is another type than what the warm-up used.
            frozen=Frozen(verifier.embed_tokens.detach(), verifier.lm_head.detach()),
            drafter=drafter,
            optimizer=make_optimizer(drafter, self.recipe.optim),
            functions=compile_step(config, device, self._discipline),
            rows=_packed_rows(self.recipe, prepared),
            shape=shape,
            gamma=self.recipe.loss.gamma_for(config.block_size),
        )
        self._resume(parts)
        self._compile(parts, self._discipline, device)
        if "tau_before" not in self.state.facts:
            self._evaluate(parts, prepared, "before")
        self._train(parts, device)
        self._evaluate(parts, prepared, "after")

    def counters(self) -> Counters:
        """Return what was compiled so far."""
        return Counters() if self._discipline is None else self._discipline.counters()

    # The phases.

    def _begin(self, phase: str, **values: Any) -> None:
        self.signals.raise_if_requested()
        self.metrics.begin(phase, **values)

    def _prepare(self, device: torch.device, shape: StepShape) -> Prepared:
        self._begin("prepare")
        talk = Talk(say=say, report=self._report_progress, should_stop=self._should_stop)
        return prepare(self.recipe.corpus, self.recipe.verifier, device=device, dtype=shape.dtype, talk=talk)

    def _should_stop(self) -> bool:
        return self.signals.requested is not None

    def _report_progress(self, progress: Progress) -> None:
        self.metrics.write(**asdict(progress))

    def _resume(self, parts: Parts) -> None:
        checkpoint, notes = find_checkpoint(self.folder / "checkpoints", self.recipe.resume)
        for note in notes:
            say(note)
        if checkpoint is None:
            return
        self.state = load_checkpoint(checkpoint, parts.drafter, parts.optimizer, contract=self._contract(parts))
        try:
            parts.rows.load_state_dict(self.state.data)
        except ValueError as error:
            raise ConfigError(f"resume: {checkpoint}: {error}; give resume=none to start anew") from error
        self._saved_step = self.metrics.step = self.result.steps = self.state.step
        self.result.resumed_from = self.result.checkpoint = str(checkpoint)
        for name, value in self.state.facts.items():
            setattr(self.result, name, value)
        say(f"resumed from {checkpoint} at step {self.state.step}")

    def _contract(self, parts: Parts) -> dict[str, Any]:
        """Return what a resumed run must share with the one that saved, for its steps to mean the same."""
        return {
            "drafter": parts.drafter.config.to_json(),
            "seed": self.recipe.seed,
            "rows": parts.shape.rows,
            "row_tokens": parts.shape.row_tokens,
            "anchors_per_row": parts.shape.anchors_per_row,
            "gamma": parts.gamma,
        }

    def _compile(self, parts: Parts, discipline: Discipline, device: torch.device) -> None:
        self._begin("compile")
        started_at = time.monotonic()
        warm_step(parts.drafter, parts.functions, parts.shape, device)
        discipline.seal()
        self.result.compile_s = round(time.monotonic() - started_at, 2)
        counters = discipline.verify()
        self.metrics.write(seconds=self.result.compile_s, **asdict(counters))
        say(f"compiled and sealed {len(discipline.functions)} functions in {self.result.compile_s:.1f} s: "
            f"{counters.fx_hits} graphs from the cache, {counters.fx_misses} new")

    def _evaluate(self, parts: Parts, prepared: Prepared, when: str) -> None:
        self._begin("eval", when=when)
        report = measure_acceptance(
            parts.verifier, parts.drafter, prepared.prompts, self.recipe.decode, should_stop=self._should_stop
        )
        self.metrics.write(when=when, **report.as_record())
        self._note(f"tau_{when}", report.tau)
        for name in ("tau_not_looping", "lookup_tau", "lookup_tau_not_looping", "looping_share"):
            self._note(name, getattr(report, name))
        say(f"{when} training: tau {report.tau:.3f} (prompt lookup {report.lookup_tau:.3f}, "
            f"looping prompts {report.looping_share:.0%})")

    def _note(self, name: str, value: float | None) -> None:
        """Keep a figure for the result, and for the result of a run that resumes this one."""
        setattr(self.result, name, value)
        self.state.facts[name] = value

    def _train(self, parts: Parts, device: torch.device) -> None:
        self._begin("train")
        batches = iter(parts.rows)
        while self.state.step < self.recipe.steps:
            with self.signals.held():
                self._one_step(parts, device, next(batches))
                if self._is_checkpoint_due() and not self.signals.requested:
                    self._save(parts)
                    self.metrics.phase = "train"
            self.signals.raise_if_requested()
        if self._saved_step < self.state.step:
            self._save(parts)

    def _is_checkpoint_due(self) -> bool:
        every = self.recipe.checkpoint.every_steps
        return bool(every) and self.state.step % every == 0

    def keep_last_step(self) -> None:
        """Save a checkpoint if steps were done since the last one."""
        if self._parts is not None and self.state.step > self._saved_step:
            self._save(self._parts)

    def _save(self, parts: Parts) -> None:
        with self.signals.held():
            self.metrics.begin("checkpoint")
            folder = save_checkpoint(
                self.folder / "checkpoints",
                parts.drafter,
                parts.optimizer,
                self.state,
                contract=self._contract(parts),
                keep=self.recipe.checkpoint.keep,
            )
            self._saved_step, self.result.checkpoint = self.state.step, str(folder)

    # One step.

    def _one_step(self, parts: Parts, device: torch.device, item: tuple[Any, Mapping[str, Any]]) -> None:
        """Do one update and tell about it."""
        started_at = time.monotonic()
        batch, data_state = item
        lr = learning_rate(self.state.step, num_steps=self.recipe.steps, config=self.recipe.optim)
        anchors = draw_anchors(
            batch, per_row=parts.shape.anchors_per_row, seed=self.recipe.seed, step=self.state.step
        )
        inputs = StepInputs.make(
            batch, anchors, parts.drafter.config, gamma=parts.gamma, chunk_slots=parts.shape.chunk_slots
        )
        figures = update(parts, inputs.to(device), lr=lr, clip_norm=self.recipe.optim.clip_norm)
        assert self._discipline is not None
        counters = self._discipline.verify()
        self.state.step, self.state.data = self.state.step + 1, dict(data_state)
        self.state.tokens += batch.num_tokens
        self._tell(figures, lr, batch.num_tokens, time.monotonic() - started_at, counters, device)

    def _tell(
        self, figures: StepFigures, lr: float, num_tokens: int, seconds: float, counters: Counters, device: torch.device
    ) -> None:
        self._train_s += seconds
        self._tokens_here += num_tokens
        self.metrics.step = self.result.steps = self.state.step
        self.result.tokens, self.result.loss_last = self.state.tokens, figures.loss
        self.result.tokens_per_s = round(self._tokens_here / self._train_s, 1)
        if "loss_first" not in self.state.facts:
            self._note("loss_first", figures.loss)
        values = {
            **asdict(figures),
            "lr": lr,
            "tokens": self.state.tokens,
            "tokens_per_s": round(num_tokens / seconds, 1),
            "memory_allocated_mib": memory_allocated_mib(device),
            **compile_fields(counters),
        }
        self.metrics.write(**values)
        if self.state.step % self.recipe.log.every_steps == 0 or self.state.step in (1, self.recipe.steps):
            say(step_line(self.state.step, self.recipe.steps, values))


def _packed_rows(recipe: Recipe, prepared: Prepared) -> PackedRows:
    try:
        return PackedRows(recipe.data, prepared.documents, recipe.seed)
    except ValueError as error:
        raise ConfigError(f"corpus: {error}") from error


def update(parts: Parts, inputs: StepInputs, *, lr: float, clip_norm: float) -> StepFigures:
    """Do one optimizer update; raises NonFiniteError before the optimizer has seen a bad gradient."""
    if not inputs.supervised.num_rows:
        return StepFigures(loss=None, grad_norm=None, accept_len=None, num_slots=0)
    target_hidden_BSC = parts.verifier.hidden(inputs.batch)
    sums = step_loss(
        parts.drafter,
        parts.functions,
        parts.frozen,
        inputs,
        target_hidden_BSC,
        chunk_slots=parts.shape.chunk_slots,
    )
    loss = sums.weighted_ce / sums.weight
    loss.backward()
    grad_norm = clip_gradients(parts.drafter.parameters(), clip_norm)
    accept_len = mean_accept_length(sums.is_correct_L, inputs)
    # The one wait for the device in a step: an update with a bad gradient could not be taken back.
    loss_value, norm_value, accept_value = torch.stack((loss.detach(), grad_norm, accept_len)).tolist()
    figures = StepFigures(loss_value, norm_value, accept_value, inputs.supervised.num_rows)
    refuse_non_finite(figures)
    set_learning_rate(parts.optimizer, lr)
    parts.optimizer.step()
    parts.optimizer.zero_grad(set_to_none=True)
    return figures


def refuse_non_finite(figures: StepFigures) -> None:
    """Raise NonFiniteError if the loss or the gradient norm is not finite."""
    for name in ("loss", "grad_norm"):
        value = getattr(figures, name)
        if not torch.tensor(value).isfinite():
            raise NonFiniteError(f"{name} is {value}; stopped before the update (lower optim.lr, or look at the batch)")


def mean_accept_length(is_correct_L: Tensor, inputs: StepInputs) -> Tensor:
    """Return the mean number of slots right in a row, bonus left out, over blocks with a supervised slot."""
    is_supervised = inputs.blocks.label_BNs != IGNORED
    lengths = accept_lengths(spread_slots(is_correct_L, inputs), is_supervised, stop_at_gap=False)
    return lengths.sum() / is_supervised.any(dim=-1).sum().float()
