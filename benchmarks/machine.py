"""The machine and the versions that were measured with."""

from __future__ import annotations

import os
import platform
import re
import shutil
import subprocess
from datetime import datetime, timezone
from importlib import metadata
from pathlib import Path

import psutil

_PACKAGES = ("scrapy-altsched", "scrapy", "queuelib", "w3lib", "rocksdict", "scrapy-redis", "redis")


def describe(directory: Path) -> dict[str, str]:
    """Date, machine and versions; *directory* is on the disk that is measured."""
    found = {
        "date": datetime.now(timezone.utc).strftime("%Y-%m-%d %H:%M UTC"),
        "processor": f"{_processor()}, {os.cpu_count()} cores",
        "memory": f"{psutil.virtual_memory().total / 2**30:.0f} GiB",
        "disk": _file_system(directory),
        "system": f"{platform.system()} {platform.release()}",
        "load before": f"{os.getloadavg()[0]:.1f}",
        "python": platform.python_version(),
    }
    for package in _PACKAGES:
        try:
            found[package] = metadata.version(package)
        except metadata.PackageNotFoundError:
            continue
    found["commit"] = _output("git", "describe", "--always", "--dirty")
    version = re.search(r"v=(\S+)", _output("redis-server", "--version"))
    if version:
        found["redis-server"] = version[1]
    return {name: value for name, value in found.items() if value}


def _processor() -> str:
    text = Path("/proc/cpuinfo").read_text() if Path("/proc/cpuinfo").exists() else ""
    found = re.search(r"model name\s*: (.+)", text)
    return found[1] if found else platform.machine()


def _file_system(directory: Path) -> str:
    mounts = psutil.disk_partitions(all=True)
    inside = [part for part in mounts if directory.resolve().is_relative_to(part.mountpoint)]
    return max(inside, key=lambda part: len(part.mountpoint)).fstype if inside else ""


def _output(*command: str) -> str:
    if shutil.which(command[0]) is None:
        return ""
    done = subprocess.run(
        command, cwd=Path(__file__).parent, capture_output=True, text=True, check=False
    )
    return done.stdout.strip()
