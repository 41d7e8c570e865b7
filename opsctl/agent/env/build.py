"""The job of a rebuild: a fresh folder, filled, proven, written down, and only then made active."""

from __future__ import annotations

import gc
import json
import os
import shutil
import time
from concurrent.futures import Executor, ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path

from opsctl.agent import jobs
from opsctl.agent.cache.key import remember_key
from opsctl.agent.env import proof, space
from opsctl.agent.env.bytecode import Bytecode
from opsctl.agent.env.install import Installed, InstallWatch, install, refuse_hard_links
from opsctl.agent.env.layout import EnvPaths, flip
from opsctl.agent.env.manifest import VENV, Manifest, dumped, entries, listing, totals
from opsctl.agent.env.plan import LOCK_NAME, Wanted, understand, understood, use_standing
from opsctl.agent.env.users import abandoned
from opsctl.agent.env.uv import Uv
from opsctl.agent.env.wheels import owners
from opsctl.agent.env.workers import workers
from opsctl.agent.files import folder_mode, remove, sweep, write_atomic, write_record
from opsctl.agent.hashing import digests
from opsctl.agent.home import Home
from opsctl.agent.locks import held
from opsctl.agent.tools import tool_path
from opsctl.errors import CheckFailed
from opsctl.formats.lockfile import exact_requirements, parse_options
from opsctl.formats.sources import local_folders, source_variables, with_environment
from opsctl.records.call import from_json
from opsctl.records.env import SOURCES_VARIABLE, EnvOutcome, EnvRecord, EnvRequest, Sources


@dataclass(frozen=True)
class Build:
    """One environment on its way: what is wanted, where it goes, and whom to tell."""

    home: Home
    request: EnvRequest
    wanted: Wanted
    sources: Sources
    paths: EnvPaths
    progress: jobs.Progress
    sizes: dict[str, int]  # distribution -> bytes once installed, as far as they are known

    def run(self) -> tuple[Installed, EnvRecord, Manifest]:
        """Fill and prove the folder; everything is on disk at the end, and nothing is active yet."""
        write_atomic(self.paths.lock, self.request.lock.encode(), mode=0o644)
        write_atomic(self.paths.exact, exact_requirements(self.wanted.pins).encode())
        with workers() as pool:
            installed = self._install(pool)
            self.paths.exact.unlink()
            self._compile(installed, pool)
        # not before: new files wait for a disk that is being flushed
        with space.flushed_meanwhile(self.paths.root), ThreadPoolExecutor(1) as beside:
            drafting = beside.submit(_manifest, installed)
            proven = self._prove(installed)
            proved = self._looked_again(installed)
        record = self._record(installed, proven)
        self.progress.phase("write", "manifest, and all of it to disk")
        manifest, data = drafting.result() if proved is installed else _manifest(proved)
        write_atomic(self.paths.manifest, data)
        space.flush(self.paths.root)
        write_record(self.paths.record, record)
        return installed, record, manifest

    def _install(self, pool: Executor) -> Installed:
        uv = self._uv()
        if len(self.sizes) < len(self.wanted.pins) / 2 and not self.sources.is_offline:
            self.progress.phase("space", "asking the index how large the packages are")
            answer = uv.look_up(self.paths.exact, self.wanted.python.executable)
            space.ensure_room(self.home, space.from_pylock(answer))
        self.progress.phase("venv", f"Python {self.wanted.python.version}")
        with ThreadPoolExecutor(1) as beside:
            cache = beside.submit(uv.cache_folder)
            uv.venv(self.wanted.python.executable, self.paths.root)
        uv = replace(uv, link_mode=space.link_mode(cache.result(), self.paths.root))
        watch = InstallWatch(
            self.progress, self.paths.site_packages(), num_packages=len(self.wanted.pins), sizes=self.sizes
        )
        self.progress.phase("install", f"{len(self.wanted.pins)} packages")
        uv = replace(uv, say=watch.row)
        return install(self.paths, uv, self.wanted.pins, pool=pool, progress=self.progress, watch=watch)

    def _uv(self) -> Uv:
        pinned = self.wanted.version_of("torch")
        variables = source_variables(
            self.sources, torch_backend=self.wanted.options.torch_backend, torch_version=pinned
        )
        return Uv(tool_path(self.home, self.request.tool), self.paths.python, self.progress.log, sources=variables)

    def _compile(self, installed: Installed, pool: Executor) -> None:
        """Write the bytecode of everything; a source that does not parse stays without."""
        self.progress.phase("compile", "bytecode")
        packs = Bytecode(self.home, self.wanted.python)
        packs.fill(self.paths.root, installed, self.progress, interpreter=self.paths.python, pool=pool)

    def _prove(self, installed: Installed) -> dict[str, str]:
        self.progress.phase("prove", "imports, versions and devices")
        versions = {one.name: one.version for one in installed.distributions}
        asked = self.request.direct or self.wanted.options.direct
        direct = tuple(name for name in asked if name in versions)
        answer = proof.ask_all(self.paths.python, distributions=direct, torch="torch" in versions)
        if broken := proof.problems(answer, versions, num_gpus=proof.num_gpus_by_driver()):
            raise CheckFailed(
                "the environment was built and does not work:\n" + "\n".join(broken),
                hint="the active environment is as it was; change the set or the driver, lock, and rebuild",
            )
        remember_key(self.paths, answer)
        return proof.summary(answer)

    def _looked_again(self, installed: Installed) -> Installed:
        """What lies there now; what was not touched since its check is not hashed again."""
        now, before = listing(self.paths.root), installed.files.files
        refuse_hard_links(now)
        if now.files == before:
            return installed
        changed = [path for path, seen in now.files.items() if seen.link is None and before.get(path) != seen]
        return replace(installed, files=now, hashes={**installed.hashes, **dict(digests(self.paths.root, changed))})

    def _record(self, installed: Installed, proven: dict[str, str]) -> EnvRecord:
        return EnvRecord(
            name=self.wanted.name,
            fingerprint=self.wanted.fingerprint,
            build=self.paths.env_id.partition("-")[2],
            created=time.time(),
            python=self.wanted.python.version,
            platform=self.wanted.python.platform,
            packages={one.name: one.version for one in installed.distributions},
            proof=proven,
        )


def _manifest(installed: Installed) -> tuple[Manifest, bytes]:
    """The manifest of what is installed, and as its file holds it."""
    owned = owners(installed.distributions)
    by_owner: Manifest = {}
    for path, entry in entries(installed.files.files, installed.hashes).items():
        by_owner.setdefault(owned.get(path, VENV), {})[path] = entry
    return by_owner, dumped(by_owner)


def sweep_envs(home: Home, progress: jobs.Progress) -> None:
    """Remove what killed builds left behind; nobody can be using a build without a record."""
    sweep(home.envs, ".*.part", ".clone-*")
    for leftover in abandoned(home):
        progress.phase("sweep", f"removing {leftover.name}, left by a build that was ended")
        remove(leftover)


def _fresh_folder(home: Home, fingerprint: str) -> Path:
    """A new folder `<fingerprint>-<time>`; made here, so that nobody else takes the name."""
    while True:
        root = home.envs / f"{fingerprint[:12]}-{time.strftime('%Y%m%d-%H%M%S', time.gmtime())}"
        try:
            root.mkdir(mode=0o755 | folder_mode(home.envs))
        except FileExistsError:
            time.sleep(0.2)
        else:
            return root


def _build_fresh(home: Home, request: EnvRequest, wanted: Wanted, progress: jobs.Progress) -> EnvOutcome:
    started = time.monotonic()
    sources = request.sources
    if not sources.is_offline:
        sources = with_environment(sources, dict(os.environ))
    sizes = space.sizes(home, wanted.name, wanted.pins, local_folders(sources.find_links))
    space.ensure_room(home, sum(sizes.values()))
    paths = EnvPaths(_fresh_folder(home, wanted.fingerprint))
    try:
        installed, record, manifest = Build(home, request, wanted, sources, paths, progress, sizes).run()
    except BaseException:
        shutil.rmtree(paths.root, ignore_errors=True)  # frees the disk for the error's own file; a rebuild sweeps too
        raise
    flip(home, paths)
    if str(home.wheelhouse) in sources.find_links:
        shutil.rmtree(home.wheelhouse, ignore_errors=True)  # what was brought is built, and lies in uv's cache
    num_files, num_bytes = totals(manifest)
    return EnvOutcome(
        env_id=paths.env_id,
        path=str(paths.root),
        is_new=True,
        was_active=False,
        record=record,
        num_files=num_files,
        size_mib=round(num_bytes / 2**20, 1),
        seconds=round(time.monotonic() - started, 1),
        notes=installed.notes,
    )


def _understand(home: Home, request: EnvRequest, progress: jobs.Progress) -> Wanted:
    """The request understood; a Python that is missing is brought first."""
    if found := understood(request, home):
        return found
    options = parse_options(request.lock, label=request.label)
    progress.phase("python", f"bringing Python {options.python}")
    sources = with_environment(request.sources, dict(os.environ))
    program = tool_path(home, request.tool)
    Uv(program, Path(), progress.log, sources=source_variables(sources)).bring_python(options.python, home.pythons)
    return understand(request, home)


def build(home: Home, request: EnvRequest, progress: jobs.Progress, *, operator: str) -> EnvOutcome:
    """Leave an environment for this lock standing and active; raises what went wrong, the old one still active."""
    why = f"env rebuild of {request.name}"
    with held(home.locks / LOCK_NAME, operator=operator, why=why, wait_s=jobs.LOCK_WAIT_S) as left:
        if left:
            progress.phase("lock", left)
        wanted = _understand(home, request, progress)
        ready, drifted = use_standing(home, wanted, known_drifted=request.drifted)
        if ready is not None:
            return ready
        for found in drifted:
            progress.log(f"{found.env_id} has drifted in {len(found.drifts)} places; building it anew")
        sweep_envs(home, progress)
        return _build_fresh(home, request, wanted, progress)


def main(arguments: list[str]) -> int:
    """`AGENT job env-build`: its request holds home, operator and the EnvRequest.

    Where files come from is in the environment, since credentials may stand in it.
    """
    gc.disable()  # a short life with tens of thousands of small records, none of which lead back to themselves
    folder = Path.cwd()
    data = jobs.request(folder)
    sources = from_json(Sources, json.loads(os.environ.pop(SOURCES_VARIABLE)))
    request = replace(from_json(EnvRequest, data["request"]), sources=sources)
    if request.ca_pem:
        bundle = folder / "ca-bundle.pem"
        bundle.write_text(request.ca_pem)
        request = replace(request, sources=replace(sources, ca_bundle=str(bundle)))
    home = Home.at(data["home"])
    return jobs.run(lambda progress: build(home, request, progress, operator=data["operator"]), folder=folder)
