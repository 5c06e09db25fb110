"""Makes the files of a release, and tries them: dist/*.whl, dist/*.tar.gz, build/sbom.cdx.json.

Builds what is committed, not what lies around. The URLs of the repository are added here, because a
clone does not know where it is published: `[project.urls]`, and README's links to other documents,
which the page of a package index would not find. Then twine checks the files; the wheel is
installed into an empty environment, where a server starts and a call is made; the SBOM lists what
is installed there.

Usage: dist.py URL_OF_THE_REPOSITORY (with build, twine and cyclonedx-bom installed)
"""

import os
import pathlib
import re
import subprocess
import sys
import tempfile
import tomllib
import venv

ROOT = pathlib.Path(__file__).parents[1]
DIST = ROOT / "dist"
SBOM = ROOT / "build" / "sbom.cdx.json"
# A target that is neither a URL nor a place in the same document.
RELATIVE_LINK = re.compile(r"(?<=\]\()(?![a-z]+:|#)")
RELATIVE_PICTURE = re.compile(r"(?<=!)(\[[^\]]*\]\()(?![a-z]+:)")
TRIAL = """
import asyncio
import sys

from toolbus import RoomClient, Toolkit, tool

@tool
async def double(number: int) -> int:
    '''Double a number.'''
    return 2 * number

async def main() -> None:
    async with RoomClient(sys.argv[1]) as room, room.host(Toolkit("trial", [double])):
        assert await room.call("trial.double", number=21) == 42

asyncio.run(main())
"""


def with_urls(pyproject: str, repository: str) -> str:
    """Add the URLs of the repository to the text of pyproject.toml."""
    urls = {
        "Repository": repository,
        "Documentation": f"{repository}/blob/main/docs/index.md",
        "Changelog": f"{repository}/blob/main/CHANGELOG.md",
        "Issues": f"{repository}/issues",
    }
    table = "".join(f'{name} = "{url}"\n' for name, url in urls.items())
    return f"{pyproject}\n[project.urls]\n{table}"


def with_absolute_links(readme: str, repository: str, version: str) -> str:
    """Let links to other documents lead to those of this version, and show its pictures."""
    readme = RELATIVE_PICTURE.sub(rf"\g<1>{repository}/raw/v{version}/", readme)
    return RELATIVE_LINK.sub(f"{repository}/blob/v{version}/", readme)


def run(*command: str | pathlib.Path, **variables: str) -> str:
    """Run a program that must succeed, and return its output."""
    done = subprocess.run(
        command, env=os.environ | variables, stdout=subprocess.PIPE, text=True, timeout=600
    )
    if done.returncode:
        sys.exit(f"{' '.join(map(str, command))} failed:\n{done.stdout}")
    return done.stdout


def stage(folder: pathlib.Path, repository: str) -> str:
    """Write what is committed, with the URLs of the repository; return its version."""
    archive = subprocess.run(
        ["git", "archive", "HEAD"], cwd=ROOT, check=True, capture_output=True, timeout=60
    )
    folder.mkdir()
    # Python 3.11.2, Debian's, has no safe `tarfile.extractall` yet.
    subprocess.run(["tar", "--extract"], cwd=folder, input=archive.stdout, timeout=60, check=True)
    pyproject, readme = folder / "pyproject.toml", folder / "README.md"
    text = pyproject.read_text(encoding="utf-8")
    version: str = tomllib.loads(text)["project"]["version"]
    pyproject.write_text(with_urls(text, repository), encoding="utf-8")
    text = readme.read_text(encoding="utf-8")
    readme.write_text(with_absolute_links(text, repository, version), encoding="utf-8")
    return version


def try_out(wheel: pathlib.Path, folder: pathlib.Path, version: str) -> None:
    """Install the wheel as a new user does, start a server, and make a call."""
    venv.create(folder)  # without pip, which the SBOM would list
    binaries = folder / "bin"
    pip = (sys.executable, "-m", "pip", "--disable-pip-version-check", "--python")
    run(*pip, binaries / "python", "install", "--quiet", f"{wheel}[server]")
    shown = run(binaries / "toolbus", "--version")
    if version not in shown:
        sys.exit(f"toolbus --version says {shown!r}, not {version}")
    variables = {"HOME": str(folder), "XDG_CONFIG_HOME": "", "XDG_STATE_HOME": ""}
    server = subprocess.Popen(
        [binaries / "toolbus", "serve", "--dev", "--port", "0"],
        env=os.environ | variables,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    try:
        assert server.stdout is not None
        shown = ""
        while not (listening := re.search(r"listening on (ws://\S+)", shown)):
            line = server.stdout.readline()
            if not line:
                sys.exit(f"toolbus serve --dev does not listen:\n{shown}")
            shown += line
        run(binaries / "python", "-c", TRIAL, listening[1], **variables)
    finally:
        server.terminate()
        server.wait(30)


def main() -> None:
    """Make the files, and try them."""
    if len(sys.argv) != 2 or not re.fullmatch(r"https://\S+[^\s/]", sys.argv[1]):
        sys.exit("give the URL of the repository: make dist REPOSITORY=https://HOST/OWNER/NAME")
    for old in DIST.glob("toolbus-*"):
        old.unlink()
    with tempfile.TemporaryDirectory() as work:
        source, installed = pathlib.Path(work, "source"), pathlib.Path(work, "installed")
        version = stage(source, sys.argv[1])
        run(sys.executable, "-m", "build", "--outdir", DIST, source)
        files = [DIST / f"toolbus-{version}{suffix}" for suffix in ("-py3-none-any.whl", ".tar.gz")]
        run(sys.executable, "-m", "twine", "check", "--strict", *files)
        try_out(files[0], installed, version)
        SBOM.parent.mkdir(exist_ok=True)
        pyproject = source / "pyproject.toml"
        run(
            *(sys.executable, "-m", "cyclonedx_py", "environment", "--output-reproducible"),
            *("--mc-type", "library", "--pyproject", pyproject, "--output-file", SBOM),
            installed / "bin" / "python",
        )
    for path in (*files, SBOM):
        sys.stdout.write(f"{path.relative_to(ROOT)}  {path.stat().st_size} bytes\n")


if __name__ == "__main__":
    main()
