"""The wheel, in an environment that has nothing else."""

from __future__ import annotations

import configparser
import os
import shutil
import subprocess
import sys
import tarfile
import zipfile
from email import message_from_bytes
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from ..servers import RedisServer
from ..sites import Page, Site

ROOT = Path(__file__).parents[2]
PAGES = {"/0": Page(["/1"]), "/1": Page(["/0"])}
SPIDER = """
import scrapy

class OneSpider(scrapy.Spider):
    name = "one"
    custom_settings = {"ADDONS": {"scrapy_altsched.Addon": 500}}

    async def start(self):
        yield scrapy.Request(self.url)

    def parse(self, response):
        yield {"url": response.url}
        yield from response.follow_all(css="a")
"""


def run(*command: object, cwd: Path) -> str:
    done = subprocess.run(
        [str(part) for part in command], cwd=cwd, capture_output=True, text=True, timeout=250
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout + done.stderr


def requirements(lines: str) -> list[Requirement]:
    return [Requirement(line) for line in lines.splitlines() if line and line[0] != "#"]


def pins(python: str) -> dict[str, str]:
    """Name -> version, in the oldest environment that is tested on that Python."""
    found = requirements((ROOT / "tests" / "constraints-oldest.txt").read_text())
    here = [it for it in found if not it.marker or it.marker.evaluate({"python_version": python})]
    versions = {canonicalize_name(it.name): str(it.specifier) for it in here}
    assert len(versions) == len(here)  # one pin each
    assert all(version.startswith("==") for version in versions.values())
    return {name: version.removeprefix("==") for name, version in versions.items()}


@pytest.mark.parametrize("python", ["3.10", "3.11", "3.12", "3.13"])
def test_the_declared_minimums_are_those_that_are_tested(python: str) -> None:
    config = configparser.ConfigParser()
    config.read(ROOT / "setup.cfg")
    tested = pins(python)
    for declared in requirements(config["options"]["install_requires"]):
        name = canonicalize_name(declared.name)
        if declared.marker is None or declared.marker.evaluate({"python_version": python}):
            assert tested[name] in declared.specifier
        if python == "3.10":  # newer ones have no wheel, or cannot run it
            assert str(declared.specifier) == f">={tested[name]}"


def source_files() -> set[str]:
    """All that the repository holds, or the source distribution that these tests run in."""
    if (ROOT / ".git").exists():
        return set(run("git", "ls-files", cwd=ROOT).splitlines())
    left_out = {".venv", ".tox", "build", "dist", "__pycache__", "PKG-INFO"}
    paths = (path.relative_to(ROOT) for path in ROOT.rglob("*") if path.is_file())
    return {
        path.as_posix()
        for path in paths
        if not left_out & set(path.parts)
        and not any(part.endswith((".egg-info", "_cache")) for part in path.parts)
    }


def test_the_source_distribution_holds_all_that_the_repository_does(tmp_path: Path) -> None:
    source = tmp_path / "source"
    files = source_files()
    for name in files:
        (source / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(ROOT / name, source / name)
    run(sys.executable, "-m", "build", "--sdist", "--outdir", tmp_path, source, cwd=tmp_path)
    (archive,) = tmp_path.glob("*.tar.gz")
    with tarfile.open(archive) as content:
        names = {member.name.partition("/")[2] for member in content if member.isfile()}
    made = {name for name in names if name == "PKG-INFO" or ".egg-info/" in name}
    assert names - made == files


@pytest.fixture(scope="session")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    # From a copy: a build leaves files in its tree, and takes up what an older one left there.
    directory = tmp_path_factory.mktemp("wheel")
    source = directory / "source"
    left_out = shutil.ignore_patterns(".*", "build", "*.egg-info", "__pycache__")
    shutil.copytree(ROOT, source, ignore=left_out)
    pip = (sys.executable, "-m", "pip")
    run(*pip, "wheel", "--quiet", "--no-deps", "--wheel-dir", directory, source, cwd=directory)
    (found,) = directory.glob("*.whl")
    return found


def install(directory: Path, wheel: str, python: Path = Path(sys.executable)) -> Path:
    """Install the wheel in an environment of its own, beside a spider; its interpreter."""
    run(python, "-m", "venv", directory / "empty", cwd=directory)
    installed = directory / "empty" / "bin" / "python"
    run(installed, "-m", "pip", "install", "--quiet", wheel, cwd=directory)
    (directory / "one.py").write_text(SPIDER)
    return installed


def test_the_wheel_holds_the_package_and_says_what_it_needs(wheel: Path) -> None:
    modules = {path.relative_to(ROOT).as_posix() for path in ROOT.glob("scrapy_altsched/**/*.py")}
    with zipfile.ZipFile(wheel) as archive:
        names = set(archive.namelist())
        (metadata,) = (name for name in names if name.endswith(".dist-info/METADATA"))
        needs = requirements(
            "\n".join(message_from_bytes(archive.read(metadata)).get_all("Requires-Dist") or ())
        )
    data = {"scrapy_altsched/py.typed", "scrapy_altsched/canonical/presets.toml"}
    data.add("scrapy_altsched/report/page.html")
    assert modules | data <= names
    assert not any(name.startswith(("tests/", "example_project/")) for name in names)
    # rocksdict has neither a wheel for Python 3.15 nor a source distribution.
    (store,) = (it for it in needs if it.name == "rocksdict")
    assert str(store.marker) == 'python_version < "3.15"'
    of_redis = {it.name for it in needs if it.marker and it.marker.evaluate({"extra": "redis"})}
    assert "redis" in of_redis
    assert "scrapy-redis" not in of_redis


def test_the_wheel_works_in_an_empty_environment(tmp_path: Path, wheel: Path) -> None:
    python = install(tmp_path, str(wheel))
    with Site(PAGES) as site:
        log = run(
            *(python, "-m", "scrapy", "runspider", "one.py", "-a", f"url={site.url}/0"),
            *("-s", "JOBDIR=job", "-o", "items.jsonl"),
            cwd=tmp_path,
        )
        assert site.hits == {"/0": 1, "/1": 1}
    assert "is finished" in log


def interpreters() -> list[Path]:
    """One Python of each version from 3.11 on that is at hand, this one included."""
    found = {sys.version_info[:2]: Path(sys.executable)}
    pyenv = Path(os.environ.get("PYENV_ROOT", Path.home() / ".pyenv"))
    for minor in (11, 12, 13):
        for path in sorted(pyenv.glob(f"versions/3.{minor}.*/bin/python")):
            found.setdefault((3, minor), path)
    return list(found.values())


@pytest.mark.slow
@pytest.mark.parametrize("python", interpreters(), ids=lambda path: path.parts[-3])
def test_the_wheel_works_without_rocksdict(
    tmp_path: Path, wheel: Path, python: Path, server: RedisServer
) -> None:
    own = install(tmp_path, f"{wheel}[redis]", python)
    run(own, "-m", "pip", "uninstall", "--quiet", "--yes", "rocksdict", cwd=tmp_path)
    listed = run(own, "-m", "pip", "list", cwd=tmp_path)
    assert "rocksdict" not in listed
    assert "scrapy-redis" not in listed

    def crawl(*settings: str, code: int = 0) -> str:
        with Site(PAGES) as site:
            words = [word for setting in settings for word in ("-s", setting)]
            url = f"url={site.url}/0"
            done = subprocess.run(
                [own, "-m", "scrapy", "runspider", "one.py", "-a", url, *words],
                cwd=tmp_path,
                capture_output=True,
                text=True,
                timeout=60,
            )
            assert done.returncode == code, done.stderr
            assert site.hits == ({} if code else {"/0": 1, "/1": 1})
        return done.stderr

    shared = ("ALTSCHED_SHARED=1", f"REDIS_PORT={server.port}")
    assert " ERROR: " not in crawl()
    assert "is finished: 2 requests done" in crawl(*shared)
    for number, settings in enumerate(((), (*shared, "ALTSCHED_SHARED_KEY=another"))):
        assert "is finished: 2 requests done" in crawl(f"JOBDIR=job {number}", *settings)
        assert (tmp_path / f"job {number}" / "frontier" / "store.sqlite").is_file()
    log = crawl("JOBDIR=other", "ALTSCHED_STORE=rocksdb", code=1)
    (line,) = (line for line in log.splitlines() if " CRITICAL: " in line)
    assert "ALTSCHED_STORE = 'rocksdb' needs the package 'rocksdict'" in line
    assert "-m pip install rocksdict`" in line
