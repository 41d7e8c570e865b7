"""Trains a drafter as one rank of a run: prepare, load, compile, evaluate, train, evaluate.

Rank 0 leads: it evaluates and saves while the others wait, as they do for the first rank of their node, which prepares
and fills the compile cache; steps are done by all.
A stop request drops whatever phase is on, except training, where all ranks stop after the same step.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch

from trainer.anchors import draw_anchors
from trainer.batch import Batch
from trainer.checkpoint import TrainState, load_checkpoint, save_checkpoint
from trainer.checkpoint_folders import find_checkpoint
from trainer.compile import Counters, Discipline
from trainer.data import PackedRows
from trainer.decode import measure_acceptance
from trainer.device import resolve_device
from trainer.errors import ConfigError
from trainer.metrics import MetricsFile, compile_fields, memory_allocated_mib, say, step_line, unheard
from trainer.model import Drafter
from trainer.model_config import DrafterConfig
from trainer.optim import learning_rate, make_optimizer
from trainer.prepare import Prepared, prepare
from trainer.progress import Progress, Talk
from trainer.ranks import PREPARE_TIMEOUT_S, WARM_TIMEOUT_S, Ranks, Share
from trainer.reading import Reading, open_reading
from trainer.recipe import Recipe
from trainer.result import Result
from trainer.signals import StopRequested, StopSignals
from trainer.step import StepInputs
from trainer.update import Parts, StepFigures, update
from trainer.warmup import StepShape, compile_step, open_discipline, warm_step


class Trainer:
    """The phases of one rank's run, in order; it holds what they pass on."""

    def __init__(
        self, recipe: Recipe, *, folder: Path, signals: StopSignals, metrics: MetricsFile, result: Result, ranks: Ranks
    ) -> None:
        self.recipe, self.folder, self.signals, self.metrics, self.result = recipe, folder, signals, metrics, result
        self.ranks = ranks
        self.state = TrainState()
        self._say = say if ranks.is_leader else unheard
        self._talk = Talk(say=self._say, report=self._report_progress, should_stop=self._should_stop)
        self._parts: Parts | None = None
        self._reading: Reading | None = None
        self._discipline: Discipline | None = None
        self._saved_step = 0
        self._train_s = 0.0
        self._tokens_here = 0

    def run(self) -> None:
        """Do all phases; raises StopRequested, TrainerError or CompileError."""
        device = resolve_device(self.recipe.device)
        self._discipline = open_discipline(
            self.recipe.compile,
            device,
            replica=self.ranks.name,
            on_compile=lambda name: self.metrics.write(compiling=name),
        )
        config, shape = self.recipe.drafter_config(), self.recipe.step_shape(device)
        prepared = self._prepare(device, shape)
        reading = self._reading = self._read(prepared, config, device, shape)
        torch.manual_seed(self.recipe.seed)
        drafter = Drafter(config).to(device)
        parts = self._parts = Parts(
            hidden=reading.hidden,
            frozen=reading.frozen,
            drafter=drafter,
            optimizer=make_optimizer(drafter, self.recipe.optim),
            functions=compile_step(config, device, self._discipline),
            rows=_packed_rows(self.recipe, prepared, self.ranks),
            shape=shape,
            gamma=self.recipe.loss.gamma_for(config.block_size),
        )
        self._resume(parts)
        self.ranks.agree_on("the step to go on from", self.state.step)
        self.ranks.share_weights(drafter)
        self._compile(parts, self._discipline, device)
        if "tau_before" not in self.state.facts:
            self._evaluate(parts, prepared, "before")
        self._train(parts, device)
        self._evaluate(parts, prepared, "after")

    def counters(self) -> Counters:
        """Return what was compiled so far."""
        return Counters() if self._discipline is None else self._discipline.counters()

    def close(self) -> None:
        """Lift the seal, so that whoever called may compile on."""
        if self._discipline is not None:
            self._discipline.close()

    # The phases.

    def _begin(self, phase: str, **values: Any) -> None:
        self.signals.raise_if_requested()
        self.metrics.begin(phase, **values)

    def _prepare(self, device: torch.device, shape: StepShape) -> Prepared:
        self._begin("prepare")
        with self.ranks.node_leader_first("preparing", timeout_s=PREPARE_TIMEOUT_S):
            return prepare(self.recipe.corpus, self.recipe.verifier, device=device, dtype=shape.dtype, talk=self._talk)

    def _read(self, prepared: Prepared, config: DrafterConfig, device: torch.device, shape: StepShape) -> Reading:
        self._begin("verifier")
        return open_reading(
            self.recipe, prepared, config, device=device, dtype=shape.dtype, ranks=self.ranks, talk=self._talk
        )

    def _should_stop(self) -> bool:
        return self.signals.requested is not None

    def _report_progress(self, progress: Progress) -> None:
        self.metrics.write(**asdict(progress))

    def _resume(self, parts: Parts) -> None:
        checkpoint, notes = find_checkpoint(self.folder / "checkpoints", self.recipe.resume)
        for note in notes:
            self._say(note)
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
        self._say(f"resumed from {checkpoint} at step {self.state.step}")

    def _contract(self, parts: Parts) -> dict[str, Any]:
        """Return what a resumed run must share with the one that saved, for its steps to mean the same."""
        return {
            "drafter": parts.drafter.config.to_json(),
            "seed": self.recipe.seed,
            "rows": parts.shape.rows,
            "row_tokens": parts.shape.row_tokens,
            "anchors_per_row": parts.shape.anchors_per_row,
            "gamma": parts.gamma,
            "ranks": self.ranks.size,
        }

    def _compile(self, parts: Parts, discipline: Discipline, device: torch.device) -> None:
        self._begin("compile")
        with self.ranks.node_leader_first("warming the compile cache", timeout_s=WARM_TIMEOUT_S):
            started_at = time.monotonic()
            warm_step(parts.drafter, parts.functions, parts.shape, device)
            discipline.seal()
        self.result.compile_s = round(time.monotonic() - started_at, 2)
        counters = discipline.verify()
        self.metrics.write(seconds=self.result.compile_s, **asdict(counters))
        self._say(
            f"compiled and sealed {len(discipline.functions)} functions in {self.result.compile_s:.1f} s: "
            f"{counters.fx_hits} graphs from the cache, {counters.fx_misses} new"
        )

    def _evaluate(self, parts: Parts, prepared: Prepared, when: str) -> None:
        """Measure the acceptance length on the leader, while the others wait for it."""
        self._begin("eval", when=when)
        with self.ranks.leader_first(f"evaluating {when} training", timeout_s=PREPARE_TIMEOUT_S):
            if self.ranks.is_leader:
                self._measure(parts, prepared, when)

    def _measure(self, parts: Parts, prepared: Prepared, when: str) -> None:
        assert self._reading is not None
        report = measure_acceptance(
            self._reading.verifier(), parts.drafter, prepared.prompts, self.recipe.decode, should_stop=self._should_stop
        )
        self.metrics.write(when=when, **report.as_record())
        self._note(f"tau_{when}", report.tau)
        for name in ("tau_not_looping", "lookup_tau", "lookup_tau_not_looping", "looping_share"):
            self._note(name, getattr(report, name))
        say(
            f"{when} training: tau {report.tau:.3f} (prompt lookup {report.lookup_tau:.3f}, "
            f"looping prompts {report.looping_share:.0%})"
        )

    def _note(self, name: str, value: float | None) -> None:
        """Keep a figure for the result, and for the result of a run that resumes this one."""
        setattr(self.result, name, value)
        self.state.facts[name] = value

    def _train(self, parts: Parts, device: torch.device) -> None:
        self._begin("train")
        batches = iter(parts.rows)
        with self.signals.held():
            self.ranks.meet()  # so that the first step's time holds no wait for the others
            while self.state.step < self.recipe.steps:
                self._one_step(parts, device, next(batches))
                if self._is_checkpoint_due():
                    self._save(parts)
                    self.metrics.phase = "train"
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
        """Write a checkpoint on the leader; the others go on to the next step and wait for it there."""
        with self.signals.held():
            self.metrics.begin("checkpoint")
            if self.ranks.is_leader:
                folder = save_checkpoint(
                    self.folder / "checkpoints",
                    parts.drafter,
                    parts.optimizer,
                    self.state,
                    contract=self._contract(parts),
                    keep=self.recipe.checkpoint.keep,
                )
                self.result.checkpoint = str(folder)
            self._saved_step = self.state.step

    # One step.

    def _one_step(self, parts: Parts, device: torch.device, item: tuple[Batch, Mapping[str, Any]]) -> None:
        """Do one update and tell about it; raises StopRequested instead where any rank was asked to stop."""
        started_at = time.monotonic()
        batch, data_state = item
        inputs = self._inputs(parts, batch)
        mine = Share(inputs.supervised.total_weight, inputs.supervised.num_rows, batch.num_tokens, self._should_stop())
        total = self.ranks.agree(mine)
        if total.num_stops:
            raise StopRequested(self.signals.requested or "a stop request to another rank")
        lr = learning_rate(self.state.step, num_steps=self.recipe.steps, config=self.recipe.optim)
        clip_norm = self.recipe.optim.clip_norm
        assert self._discipline is not None
        self._discipline.begin_step()
        figures = update(parts, inputs.to(device), total, ranks=self.ranks, lr=lr, clip_norm=clip_norm)
        counters = self._discipline.verify()
        self.state.step, self.state.data = self.state.step + 1, dict(data_state)
        self.state.tokens += total.num_tokens
        self._tell(figures, lr, total.num_tokens, time.monotonic() - started_at, counters, device)

    def _inputs(self, parts: Parts, batch: Batch) -> StepInputs:
        """Return this rank's part of a step, on the host."""
        anchors = draw_anchors(
            batch,
            per_row=parts.shape.anchors_per_row,
            seed=self.recipe.seed,
            step=self.state.step,
            rank=self.ranks.rank,
        )
        return StepInputs.make(
            batch, anchors, parts.drafter.config, gamma=parts.gamma, chunk_slots=parts.shape.chunk_slots
        )

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
            self._say(step_line(self.state.step, self.recipe.steps, values))


def _packed_rows(recipe: Recipe, prepared: Prepared, ranks: Ranks) -> PackedRows:
    try:
        return PackedRows(recipe.data, prepared.documents, recipe.seed, rank=ranks.rank, world_size=ranks.size)
    except ValueError as error:
        raise ConfigError(f"corpus: {error}") from error
