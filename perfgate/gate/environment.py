"""What must match for two figures to be comparable, and the directory name it goes by.

Hard keys make the environment's identity. Live readings and records (load, kernel, governor)
are kept beside them as ``soft`` and are no part of it: an identity that drifts from one minute
to the next compares nothing with anything.
"""

from __future__ import annotations

import hashlib
import json
import os
import platform
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from importlib import metadata
from pathlib import Path

import psutil

from perfgate.scheduling import permitted

BENCHMARK_VERSION = 2
"""Raised whenever the way a case is timed changes, which makes older figures incomparable."""

MATTERS = ("NCCL_", "TORCH_NCCL_", "GLOO_", "OMP_", "KMP_", "MKL_NUM", "UCX_")
MATTERS_TOO = ("CUDA_LAUNCH_BLOCKING", "CUDA_DEVICE_MAX_CONNECTIONS", "PYTORCH_CUDA_ALLOC_CONF")
MATTERS_NOT = re.compile(r"NCCL_DEBUG.*|TORCH_NCCL_(DEBUG|TRACE|DESYNC|DUMP).*|OMP_DISPLAY.*")


@dataclass(frozen=True, slots=True, kw_only=True)
class Environment:
    """Where figures were taken. Two environments are equal when every hard key is."""

    hard: Mapping[str, str]
    soft: Mapping[str, str] = field(default_factory=dict, compare=False)

    @classmethod
    def detect(
        cls,
        *,
        gpus: Sequence[str] = (),
        driver: str = "",
        backends: Mapping[str, str] | None = None,
        variables: Mapping[str, str] | None = None,
    ) -> Environment:
        """Read this machine, without importing torch.

        :param gpus: the name of each visible GPU; ``driver`` is the driver's version.
        :param backends: versions of communication backends by name, ``{"nccl": "2.27.3"}``.
        :param variables: the environment variables that the ranks will see (default: ours).
        """
        hard = {
            "cpu": cpu_model(),
            "cores": str(usable_cores()),
            "quota": quota(),
            "numa nodes": str(numa_nodes()),
            "gpus": _counted(gpus),
            "driver": driver or "none",
            "python": ".".join(platform.python_version_tuple()[:2]),
            "torch": _version("torch"),
            "benchmark": str(BENCHMARK_VERSION),
            "scheduling": permitted(),
        }
        hard |= {f"backend {name}": version for name, version in (backends or {}).items()}
        hard |= relevant(os.environ if variables is None else variables)
        return cls(hard=dict(sorted(hard.items())), soft=live_readings())

    @property
    def portable(self) -> bool:
        """Whether figures hold on every machine, as ratios of arms in one world do."""
        return "portable" in self.hard

    @property
    def key(self) -> str:
        """A readable directory name: ``amd-epyc-9554-2c-torch-2.13.0-1a2b3c4d``."""
        if self.portable:
            return f"portable-{slug(self.hard['scheduling'])}"
        device = self.hard.get("gpus", "none")
        if device == "none":
            device = f"{self.hard.get('cpu', 'cpu')} {self.hard.get('cores', '?')}c"
        torch = self.hard.get("torch", "absent").split("+")[0]
        canonical = json.dumps(dict(sorted(self.hard.items())))
        digest = hashlib.sha256(canonical.encode()).hexdigest()[:8]
        return f"{slug(device)}-torch-{slug(torch)}-{digest}"

    def __hash__(self) -> int:
        return hash(tuple(sorted(self.hard.items())))


def differences(ours: Environment, theirs: Environment) -> tuple[str, ...]:
    """Return one line per hard key that differs: ``cores: 2 here, 4 there``."""
    names = sorted(ours.hard.keys() | theirs.hard.keys())
    pairs = [(name, ours.hard.get(name, "unset"), theirs.hard.get(name, "unset")) for name in names]
    return tuple(
        f"{name}: {here} here, {there} there" for name, here, there in pairs if here != there
    )


def relevant(variables: Mapping[str, str]) -> dict[str, str]:
    """Return the variables that change how fast collectives run, and none that only log."""
    return {
        name: value
        for name, value in sorted(variables.items())
        if (name.startswith(MATTERS) or name in MATTERS_TOO) and not MATTERS_NOT.fullmatch(name)
    }


def cpu_model(cpuinfo: Path = Path("/proc/cpuinfo")) -> str:
    """Return the processor's name as the kernel spells it; never its clock rate."""
    for line in _read(cpuinfo).splitlines():
        name, _, value = line.partition(":")
        if name.strip() in ("model name", "Model", "cpu model"):
            return " ".join(value.split())
    return platform.processor() or platform.machine()


def usable_cores() -> int:
    """Return the number of cores that this process may run on."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def quota(root: Path = Path("/sys/fs/cgroup"), own: Path = Path("/proc/self/cgroup")) -> str:
    """Return the cgroup's CPU quota in cores (``"1.5"``), the tightest on the way up, or none."""
    allowed = [cores for folder in _cgroups(root, own) if (cores := _cores_allowed(folder))]
    return f"{min(allowed):g}" if allowed else "none"


def _cgroups(root: Path, own: Path) -> list[Path]:
    paths = [line.split(":", 2)[-1] for line in _read(own).splitlines()]
    found = {root, root / "cpu"}
    for path in paths:
        for base in (root, root / "cpu"):
            folder = base / path.lstrip("/")
            found |= {folder, *(parent for parent in folder.parents if root in parent.parents)}
    return sorted(found)


def _cores_allowed(folder: Path) -> float | None:
    limit, _, period = _read(folder / "cpu.max").strip().partition(" ")
    if not period:  # cgroup v1
        limit = _read(folder / "cpu.cfs_quota_us").strip()
        period = _read(folder / "cpu.cfs_period_us").strip()
    if not (limit.isdigit() and period.isdigit() and int(period)):
        return None
    return int(limit) / int(period)


def numa_nodes(root: Path = Path("/sys/devices/system/node")) -> int:
    """Return how many memory nodes the kernel knows; 1 where it does not say."""
    return len(list(root.glob("node[0-9]*"))) or 1


def live_readings() -> dict[str, str]:
    """Return what is recorded and never compared: kernel, governor, load, temperature."""
    load = f"{os.getloadavg()[0]:.2f}" if hasattr(os, "getloadavg") else "unknown"
    return {
        "kernel": platform.release(),
        "governor": governor(),
        "load": load,
        "temperature": temperature(),
    }


def temperature() -> str:
    """Return the hottest sensor's reading in degrees Celsius, ``unknown`` without sensors."""
    sensors = psutil.sensors_temperatures() if hasattr(psutil, "sensors_temperatures") else {}
    readings = [one.current for group in sensors.values() for one in group]
    return f"{max(readings):.0f}" if readings else "unknown"


def governor() -> str:
    """Return the first core's frequency governor, ``unknown`` where the kernel hides it."""
    path = Path("/sys/devices/system/cpu/cpu0/cpufreq/scaling_governor")
    return _read(path).strip() or "unknown"


def slug(text: str) -> str:
    """Return ``text`` as a safe, lower-case path component without a processor's decorations."""
    text = re.sub(r"\((R|TM|C)\)|@.*GHz|\b(CPU|Processor|\d+-Core)\b", " ", text, flags=re.I)
    return re.sub(r"[^a-z0-9.]+", "-", text.lower()).strip("-.")[:60] or "unknown"


def _counted(gpus: Sequence[str]) -> str:
    counts = {name: gpus.count(name) for name in sorted(set(gpus))}
    return ", ".join(f"{count}x {name}" for name, count in counts.items()) or "none"


def _version(distribution: str) -> str:
    try:
        return metadata.version(distribution)
    except metadata.PackageNotFoundError:
        return "absent"


def _read(path: Path) -> str:
    try:
        return path.read_text()
    except OSError:
        return ""
