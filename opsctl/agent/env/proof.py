"""Proof that an environment works: imports, versions, and torch's view of the devices it should see."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from pathlib import Path
from typing import Any

from opsctl.agent.env.scripts import program
from opsctl.errors import CheckFailed, TimedOut

_LIMIT_S = 300.0
_SMI_LIMIT_S = 20.0

Answer = dict[str, Any]


def ask(python: Path, *, distributions: tuple[str, ...] = (), torch: bool) -> Answer:
    """What the environment's Python answers; raises CheckFailed if it gives no answer."""
    environment = {**os.environ, "CUDA_DEVICE_ORDER": "PCI_BUS_ID"}
    environment.pop("CUDA_VISIBLE_DEVICES", None)
    try:
        done = subprocess.run(
            (str(python), "-I", "-B", "-c", program("probe_script")),
            input=json.dumps({"distributions": list(distributions), "torch": torch}),
            env=environment,
            cwd="/",
            capture_output=True,
            text=True,
            errors="replace",
            timeout=_LIMIT_S,
            check=False,
        )
    except OSError as error:
        raise CheckFailed(
            f"{python} does not start: {error.strerror}", hint="`opsctl env rebuild` builds the environment anew"
        ) from None
    except subprocess.TimeoutExpired:
        raise TimedOut(
            f"the imports of {python} did not end within {_LIMIT_S:g} s", hint="a driver may be stuck: try nvidia-smi"
        ) from None
    try:
        answer: Answer = json.loads(done.stdout.rstrip().rpartition("\n")[2])
    except ValueError:
        raise CheckFailed(
            f"{python} ended with status {done.returncode} during the proof:\n{done.stderr.strip()[-2000:]}",
            hint="a library crashed while it was imported",
        ) from None
    return answer


def ask_all(python: Path, *, distributions: tuple[str, ...], torch: bool) -> Answer:
    """The same of several, torch in a process of its own beside the others, since its import takes longest."""
    from concurrent.futures import ThreadPoolExecutor  # 15 ms that the start of a run, which asks nothing, must not pay

    alone = tuple(name for name in distributions if torch and name == "torch")
    others = tuple(name for name in distributions if name not in alone)
    requests = [(others, False), *([(alone, True)] if torch else [])]
    with ThreadPoolExecutor(len(requests)) as pool:
        answers = list(pool.map(lambda asked: ask(python, distributions=asked[0], torch=asked[1]), requests))
    found = {name: one for answer in answers for name, one in answer["distributions"].items()}
    return {**answers[-1], "distributions": {name: found[name] for name in distributions}}


def num_gpus_by_driver() -> int | None:
    """How many GPUs nvidia-smi lists; None where there is none to ask or it does not answer."""
    program = shutil.which("nvidia-smi")
    if program is None:
        return None
    try:
        done = subprocess.run((program, "-L"), capture_output=True, text=True, timeout=_SMI_LIMIT_S, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return None
    return done.stdout.count("UUID:") if done.returncode == 0 else None


def problems(answer: Answer, versions: dict[str, str], *, num_gpus: int | None) -> tuple[str, ...]:
    """Everything in an answer that makes the environment unfit; pure."""
    found: list[str] = []
    for name, one in answer["distributions"].items():
        found += one["errors"]
        if one["version"] and one["version"] != versions.get(name, one["version"]):
            found.append(f"{name} is imported as {one['version']}, and {versions[name]} was installed")
    return tuple(found) + _torch_problems(answer["torch"], num_gpus)


def _torch_problems(torch: Answer | None, num_gpus: int | None) -> tuple[str, ...]:
    if torch is None:
        return ()
    if "error" in torch:
        return (f"torch: {torch['error']}",)
    broken = [f"torch on {device}: {text}" for device, text in torch["devices"].items() if text]
    seen = len(torch["gpus"])
    if (torch["cuda"] or torch["hip"]) and num_gpus and seen < num_gpus:
        broken.append(f"torch (CUDA {torch['cuda']}) sees {seen} of {num_gpus} GPUs: is the driver too old?")
    return tuple(broken)


def summary(answer: Answer) -> dict[str, str]:
    """The proof as env.json keeps it."""
    found = {name: f"{one['version']}: {', '.join(one['modules'])}" for name, one in answer["distributions"].items()}
    torch = answer["torch"]
    if torch:
        found |= {
            "torch.version": torch["version"],
            "torch.cuda": torch["cuda"] or "none",
            "torch.gpus": ", ".join(torch["gpus"]) or "none",
            "torch.products": ", ".join(torch["devices"]),
        }
    return found
