"""Resolves toolbus together with the newest release of what people install beside it.

Installs nothing. Prints one line for each package; exits with 1 if toolbus does not fit beside one.
A package that cannot be resolved alone fails too: then nothing is known.

Usage: resolve.py UV [PYTHON_VERSION]
"""

import pathlib
import subprocess
import sys

PYPROJECT = pathlib.Path(__file__).parents[1] / "pyproject.toml"
# For each package, the options of uv that choose our extras. A bound of ours that excludes one of
# these makes toolbus impossible for all who use it: websockets is what most of them bound, crewai
# allows only an mcp below ours, which no more than our extra `mcp` needs.
ALL = {"base": (), "all extras": ("--all-extras",)}
SERVER = {"base": (), "[server]": ("--extra", "server")}
BESIDE = {
    "openai-agents": ALL,
    "google-genai": ALL,
    "langchain-openai": ALL,
    "pydantic-ai": ALL,
    "livekit-agents": ALL,
    "fastmcp": ALL,
    "gradio": ALL,
    "supabase": ALL,
    "crewai": SERVER,
}


def resolve(uv: list[str], requirement: str, *sources: str) -> list[str] | str:
    """Return the requirements of a resolution as `NAME==VERSION`, or why there is none."""
    done = subprocess.run(
        [*uv, *sources, "-"], input=requirement, capture_output=True, text=True, timeout=600
    )
    return done.stdout.splitlines() if done.returncode == 0 else done.stderr.strip()


def line_for(uv: list[str], package: str) -> tuple[bool, str]:
    """Resolve with one package; return whether all is well, and a line that says it."""
    alone = resolve(uv, package)
    if isinstance(alone, str):
        return False, f"{package} alone: NOT RESOLVED\n{alone}"
    # The newest release is required exactly. Else an old one, whose bounds are wider or none, would
    # be taken without a word.
    newest = next(line for line in alone if line.startswith(f"{package}=="))
    found = []
    if newest not in resolve(uv, package, "--no-deps"):
        found.append("a newer one cannot be installed even alone")
    for name, extras in BESIDE[package].items():
        together = resolve(uv, newest, *extras, str(PYPROJECT))
        if isinstance(together, str):
            return False, f"beside {newest}, {name}: NOT RESOLVED\n{together}"
        found.append(f"{name} {len(together)} packages")
    return True, f"beside {newest}: {', '.join(found)}"


def main() -> int:
    """Resolve with each package."""
    program, *version = sys.argv[1:]
    uv = [program, "pip", "compile", "--quiet", "--no-header", "--no-annotate"]
    if version:
        uv += ["--python-version", *version]
    results = [line_for(uv, package) for package in BESIDE]
    for _, line in results:
        sys.stdout.write(f"{line}\n")
    return 0 if all(is_well for is_well, _ in results) else 1


if __name__ == "__main__":
    sys.exit(main())
