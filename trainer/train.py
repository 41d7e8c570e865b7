"""Trains a drafter, from a recipe to a result: prepare, load, compile, evaluate, train, evaluate.

The run directory is the working directory; it gets recipe.yaml, metrics.jsonl, checkpoints/ and result.json.
A stop request drops whatever phase is on, except a training step or a checkpoint, and always leaves a checkpoint of the
last step behind if there is a step to keep.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch

from trainer.anchors import draw_anchors
from trainer.checkpoint import TrainState, find_checkpoint, load_checkpoint, save_checkpoint
from trainer.compile import CompileError, Counters, Discipline, explain
from trainer.config import to_yaml
from trainer.data import PackedRows
from trainer.decode import measure_acceptance
from trainer.device import resolve_device
from trainer.errors import ConfigError, TrainerError
from trainer.files import write_atomically
from trainer.metrics import MetricsFile, compile_fields, memory_allocated_mib, say, step_line
from trainer.model import Drafter
from trainer.optim import learning_rate, make_optimizer
from trainer.prepare import Prepared, prepare
from trainer.progress import Progress, Talk
from trainer.recipe import Recipe
from trainer.result import Result
from trainer.signals import StopRequested, StopSignals
from trainer.step import Frozen, StepInputs
from trainer.update import Parts, StepFigures, update
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
            if not (broken := explain(error, "code outside the discipline", ())):
                result.fail(error, 1)
                raise
            result.fail(broken, broken.exit_code)
            say(f"{recipe.name}: {broken}")
        finally:
            result.seconds = round(time.monotonic() - started_at, 2)
            result.phase, result.counters = metrics.phase, asdict(trainer.counters())
            result.write(folder)
            trainer.close()
            metrics.begin("end", status=result.status, exit_code=result.exit_code)
    say(closing_line(result))
    assert result.exit_code is not None
    return result.exit_code


def closing_line(result: Result) -> str:
    """Return the last line for people."""
    where = f", checkpoint {result.checkpoint}" if result.checkpoint else ""
    why = f" ({result.cause})" if result.status == "stopped" else ""
    return f"{result.name}: {result.status}{why} after step {result.steps}/{result.num_steps}{where}"


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
        device = resolve_device(self.recipe.device)
        self._discipline = Discipline(device.type, on_compile=lambda name: self.metrics.write(compiling=name))
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
        say(
            f"compiled and sealed {len(discipline.functions)} functions in {self.result.compile_s:.1f} s: "
            f"{counters.fx_hits} graphs from the cache, {counters.fx_misses} new"
        )

    def _evaluate(self, parts: Parts, prepared: Prepared, when: str) -> None:
        self._begin("eval", when=when)
        report = measure_acceptance(
            parts.verifier, parts.drafter, prepared.prompts, self.recipe.decode, should_stop=self._should_stop
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
        anchors = draw_anchors(batch, per_row=parts.shape.anchors_per_row, seed=self.recipe.seed, step=self.state.step)
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
