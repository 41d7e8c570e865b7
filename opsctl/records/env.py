"""Records of environments: what stands, what drifted. Frozen, standard library only, no I/O."""

from __future__ import annotations

from dataclasses import dataclass, field

from opsctl.records.call import SCHEMA

VARIABLE = "variable"
DRIFT_KINDS = ("edited", "missing", "added", "foreign", "intruder", "python", VARIABLE)
# variables that make a job import, or load, something else than its environment holds
STEERING = (
    "PYTHONPATH",
    "PYTHONHOME",
    "PYTHONPLATLIBDIR",
    "PYTHONPYCACHEPREFIX",
    "PYTHONUSERBASE",
    "LD_PRELOAD",
    "LD_AUDIT",
    "LD_LIBRARY_PATH",
)

# of the job that builds: the sources as JSON, which come over the FIFO that secrets use
SOURCES_VARIABLE = "OPSCTL_ENV_SOURCES"


@dataclass(frozen=True)
class EnvRecord:
    """env.json: what an environment was built from, and what its proof saw."""

    name: str  # the set: cpu, cu130, ...
    fingerprint: str
    build: str
    created: float
    python: str
    platform: str
    packages: dict[str, str] = field(default_factory=dict)  # distribution -> version
    proof: dict[str, str] = field(default_factory=dict)  # what was imported, what torch said
    schema: int = SCHEMA


@dataclass(frozen=True)
class Drift:
    """One difference between an environment and its manifest.

    `foreign` is a distribution installed behind our back, `intruder` a file that Python runs by
    itself at start (.pth, sitecustomize), `python` an interpreter that is not the one built for,
    `variable` one of the target's that reaches every job (`path` is its name).
    """

    kind: str
    distribution: str  # "" where no distribution owns the file
    path: str  # relative to the environment
    detail: str = ""


@dataclass(frozen=True)
class EnvCheck:
    """What a look at an environment found; no drift means that it is as it was built."""

    env_id: str
    mode: str  # quick: sizes and times, then hashes of what differs; full: every hash
    num_files: int
    seconds: float
    drifts: tuple[Drift, ...] = ()
    notes: tuple[str, ...] = ()  # true and worth knowing, but no drift

    @property
    def is_clean(self) -> bool:
        """Whether nothing drifted."""
        return not self.drifts

    @property
    def is_rebuildable(self) -> bool:
        """Whether a rebuild mends something of what drifted: it cannot unset a variable."""
        return any(one.kind != VARIABLE for one in self.drifts)


@dataclass(frozen=True)
class EnvEntry:
    """One environment that stands on the target."""

    env_id: str
    path: str
    is_active: bool
    record: EnvRecord
    size_mib: float
    num_files: int
    used_by: tuple[str, ...] = ()  # runs that live and use it


@dataclass(frozen=True)
class Origin:
    """Where an installed distribution came from.

    `kind` is index, url, file (a local wheel), folder, editable, git (or another version control), unknown.
    """

    kind: str
    url: str = ""  # without credentials
    sha256: str = ""  # of the archive, where the installer kept it


@dataclass(frozen=True)
class EnvContents:
    """What an environment holds now, whatever it was built from."""

    env_id: str
    name: str  # the set
    created: float
    python: str
    platform: str
    lock: str  # the text that it was built from
    packages: dict[str, str] = field(default_factory=dict)  # distribution -> version
    origins: dict[str, Origin] = field(default_factory=dict)  # of those that came from no index
    files: dict[str, dict[str, str]] = field(default_factory=dict)  # distribution ("" = none) -> file -> sha256


@dataclass(frozen=True)
class AdoptedDistribution:
    """One distribution of an environment made by hand."""

    name: str
    version: str
    origin: Origin
    requires: tuple[str, ...] = ()  # names of what it asks for, extras apart
    edited: tuple[str, ...] = ()  # files that are not what its RECORD says
    missing: tuple[str, ...] = ()
    has_record: bool = True  # else nobody can say which files are its own


@dataclass(frozen=True)
class AdoptedArchive:
    """<id>.json beside the archive of an environment made by hand: enough to check it and to bring it back."""

    archive_id: str
    path: str  # where the environment lay; its scripts name that place
    created: float
    operator: str
    python: str
    archive_sha256: str
    num_files: int
    size_mib: float  # unpacked
    files: dict[str, str] = field(default_factory=dict)  # path -> sha256, "-> TEXT" of a link, "/" for a folder
    schema: int = SCHEMA


@dataclass(frozen=True)
class Adopted:
    """What is known of an environment made by hand, and where its archive lies."""

    archive_id: str
    path: str
    archive: str
    archive_mib: float
    num_files: int
    size_mib: float
    seconds: float
    python: str
    machine: str  # x86_64, aarch64, ...
    glibc: str  # "2.36"; "" where there is none
    distributions: tuple[AdoptedDistribution, ...] = ()
    loose: tuple[str, ...] = ()  # files in site-packages that no distribution owns
    outside: tuple[str, ...] = ()  # sentences about what it imports from elsewhere
    notes: tuple[str, ...] = ()


@dataclass(frozen=True)
class ArchiveEntry:
    """One adopted environment that lies in the target's home."""

    archive_id: str
    path: str  # where the environment lay
    created: float
    operator: str
    python: str
    num_files: int
    size_mib: float  # unpacked
    archive: str
    archive_mib: float


@dataclass(frozen=True)
class RestoredArchive:
    """An environment made by hand that lies in its place again."""

    archive_id: str
    path: str
    num_files: int
    size_mib: float
    seconds: float
    notes: tuple[str, ...] = ()


@dataclass(frozen=True)
class RemovedEnv:
    """An environment that a prune removed, or would remove."""

    env_id: str
    name: str  # the set
    created: float
    size_mib: float  # on the disk
    unsaved_cache: str = ""  # key of the live cache that fitted it alone and has no snapshot; it stays
    is_leftover: bool = False  # of a build that was ended


@dataclass(frozen=True)
class KeptEnv:
    """An environment that a prune leaves, and why."""

    env_id: str
    name: str
    created: float
    why: str


@dataclass(frozen=True)
class PruneOutcome:
    """What a prune came to."""

    removed: tuple[RemovedEnv, ...]
    kept: tuple[KeptEnv, ...]
    freed_mib: float
    is_dry_run: bool


@dataclass(frozen=True)
class Sources:
    """Where a rebuild gets its files; credentials may stand in the addresses: never shown, and never on a disk."""

    index_url: str = ""
    extra_index_urls: tuple[str, ...] = ()
    find_links: tuple[str, ...] = ()
    ca_bundle: str = ""  # a path on the machine that asks
    proxy: str = ""
    no_proxy: str = ""
    python_mirror: str = ""
    is_offline: bool = False  # no index, no network: find_links alone


@dataclass(frozen=True)
class Tool:
    """A program that the operator's side brings to the target, named by its hash."""

    name: str  # uv-0.13.9-<sha256[:12]>
    sha256: str
    size: int


@dataclass(frozen=True)
class Wheel:
    """A file of a distribution that the operator's side brings to the target."""

    name: str  # of the file
    sha256: str
    size: int


@dataclass(frozen=True)
class EnvRequest:
    """What a rebuild is asked for: a set's lock, and where its files come from."""

    name: str
    lock: str  # the text of NAME.lock
    label: str  # how messages name that file
    direct: tuple[str, ...] = ()  # distributions to import as proof; () = those that the lock itself names
    sources: Sources = field(default_factory=Sources)
    ca_pem: str = ""  # certificates that the operator's side brings, instead of those that `sources` name
    tool: Tool | None = None
    drifted: tuple[str, ...] = ()  # ids that the plan found drifted: a job need not look again


@dataclass(frozen=True)
class EnvOutcome:
    """How a rebuild ended: a standing environment, old or new, and it is active."""

    env_id: str
    path: str
    is_new: bool
    was_active: bool  # it was active already
    record: EnvRecord
    num_files: int = 0
    size_mib: float = 0.0
    seconds: float = 0.0
    notes: tuple[str, ...] = ()


@dataclass(frozen=True)
class EnvPlan:
    """What a rebuild would do here: nothing, where `outcome` names what stands, or build anew."""

    name: str  # the set that was chosen of those asked for
    machine: str  # x86_64, aarch64, ...: which programs run there
    fingerprint: str = ""
    python: str = ""  # "" where it has yet to be brought
    platform: str = ""
    driver: str = ""  # of NVIDIA; asked for only where it matters
    outcome: EnvOutcome | None = None
    drifted: tuple[EnvCheck, ...] = ()  # environments of this fingerprint that stand and have drifted
