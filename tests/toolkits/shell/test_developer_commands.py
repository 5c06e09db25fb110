"""What git and the tools of developers and of systems do, by their words and their repository."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from toolbus_toolkits.shell.assessing import assess_line
from toolbus_toolkits.shell.commands import Effect, effect_of
from toolbus_toolkits.shell.commands.git_repository import config_programs
from toolbus_toolkits.shell.config import shell_environment
from toolbus_toolkits.shell.reading import read_line
from toolbus_toolkits.workspace import Roots, SensitivePaths

READ_ONLY = """
git
git --version
git status -sb
git -C sub status
git -c color.ui=never --no-pager log -3
git log --oneline --since=yesterday --author=me -n 5 -- a
git log --format='%h %s' main..dev
git log -p -U5 --stat a
git log -- $x
git show HEAD:a
git show :/x
git diff HEAD~1 --name-only -- a
git diff --no-index a b
git stash list
git stash show -p
git blame -wL 1,5 a
git grep -nA3 foo
git grep -e foo -- a
git branch
git branch -vv --all
git branch --list foo
git branch --contains HEAD
git branch --merged
git tag -l 'v*'
git tag -n3
git remote -v
git remote get-url origin
git config user.name
git config --get-all remote.origin.url
git config get user.name
git reflog -n5
git reflog show main
git ls-files -m
git cat-file -p HEAD
git rev-parse --abbrev-ref HEAD
git shortlog -sn HEAD
git describe --tags
git for-each-ref --sort=-committerdate --format='%(refname)'
git symbolic-ref HEAD
git worktree list
git submodule status
git clean -nd
docker ps -a
docker inspect x --format '{{.Id}}'
docker container ls -q
kubectl -n x get po,svc -o yaml
kubectl logs -f pod
gh pr view 3
gh issue list -R a/b
npm -v
pip list --format=json
pip3 show x
uv --version
python3 --version
gcc --version
java -version
systemctl --user status x
journalctl -u x -n 50
apt list --installed
apt-cache policy x
dpkg -l
rpm -qa
terraform version
hostnamectl
"""

ASKED = """
git branch foo
git branch -l foo
git branch -D foo
git branch --edit-description
git branch --contains -- -D x
git tag x
git tag -d x
git tag -v x
git log --output=x
git log --output x
git log --outp=x
git log --ext-diff
git log --show-signature
git log --format=%G?
git log --format='%-GS'
git log --remerge-diff
git log --diff-merges=remerge
git log $x
git log -S "$x"
git log --grep --decorate-refs --patch --author --output=x
git log -pn --output=x
git log -pL x --output=y
git diff-tree -L --output=x HEAD
git stash show -S x -S --output=f
git grep -Ovi x
git grep -lOvi x
git grep --open-files-in-pager=vi x
git cat-file --textconv HEAD:x
git -c core.pager=x log
git -c alias.x='!rm y' x
git -c "$x" log
git --git-dir=/x log
git --git-dir /x log
git --exec-path=/x log
git -p log
git --config-env=core.pager=X log
git help log
git foo
git $x
git config user.name x
git config unset user.name
git config edit
git config -z edit
git stash
git stash drop
git remote add x y
git remote show origin
git remote -v update
git reflog expire
git reflog -n expire --all
git symbolic-ref HEAD x
git archive -o x HEAD
git describe --dirty
git notes add
git ls-remote
git for-each-ref --format='%(signature)'
git clean -f
git\\ log
docker run x
docker exec x rm y
docker -H x ps
docker compose ps
docker container rm x
kubectl get secrets
kubectl get pods,secrets
kubectl get pods secret/x
kubectl get $x
kubectl get --raw /x
kubectl --kubeconfig x get po
kubectl cluster-info dump
gh api x
gh pr list -w
gh pr view evil.example/a/b
gh pr view https://evil.example/a/b/pull/1
npm run test
npm view x
npm ls
npm ls --omit --logs-dir=x
npm -s root
npm -l
kubectl get pods -o go-template-file=.env
kubectl get pods -ocustom-columns-file=a
npm -h
npm config list
pip list --log x
pip list --isolated
pip --isolated list
pip list --lo x
pip freeze
yarn --version
pnpm list
cargo --version
go version
make -n
uv pip list
systemctl stop x
systemctl -H x status
journalctl --vacuum-time=1s
journalctl --vacuum-t=1s
dpkg -i x
rpm -i x
apt install x
hostnamectl set-hostname x
curl x
ssh x
"""

SETTINGS = """
git config --global user.name x
git config --glob user.name x
git config -f x a.b c
git config set --global user.name x
git config core.fsmonitor x
git config core.hooksPath x
git config alias.st '!x'
git config --local filter.x.clean y
git config --rename-section user core
git config "$x" y
npm config set a b
npm conf set a b
npm --global config set a b
npm config $x
pip config set list b
go env -w A=b
poetry config a b
gh auth login
kubectl config use-context x
docker login
"""


def _effects(line: str) -> list[Effect]:
    """Return the effects of the commands of a line, and of those that they start."""
    waiting = list(read_line(line, {}).commands)
    found: list[Effect] = []
    while waiting:
        effect = effect_of(waiting.pop(0))
        found.append(effect)
        waiting.extend(effect.runs)
    return found


@pytest.mark.parametrize("line", READ_ONLY.strip().split("\n"))
def test_only_reads(line: str) -> None:
    assert all(effect.read_only for effect in _effects(line)), _effects(line)


@pytest.mark.parametrize("line", ASKED.strip().split("\n"))
def test_is_asked_about_with_a_reason(line: str) -> None:
    asked = [effect for effect in _effects(line) if not effect.read_only]
    assert asked
    assert all(effect.why for effect in asked)


@pytest.mark.parametrize("line", SETTINGS.strip().split("\n"))
def test_a_person_decides_about_settings_of_the_user(line: str) -> None:
    assert any(effect.immune for effect in _effects(line))


@pytest.mark.parametrize(
    ("line", "started"),
    [
        ("git -C a -c color.ui=never push x", "git push x"),
        ("git --git-dir /x push", "git push"),
        ("git --not-known x push", "git push"),
        ("git bisect run rm x", "rm x"),
        ("git submodule foreach 'rm x'", "rm x"),
        ("git rebase --exec='rm x' HEAD~2", "rm x"),
        ("docker -H tcp://x rm y", "docker rm y"),
        ("npx -y eslint .", "eslint ."),
        ("npx -c 'rm x'", "rm x"),
        ("npx --not-known x rm y", "rm y"),
        ("npm exec eslint .", "eslint ."),
        ("uv run --with x pytest a", "pytest a"),
        ("uv --not-known run rm x", "rm x"),
        ("poetry run rm x", "rm x"),
        ("conda run -n x rm y", "rm y"),
    ],
)
def test_what_a_command_starts_is_judged_as_a_command(line: str, started: str) -> None:
    (command,) = read_line(line, {}).commands
    runs = effect_of(command).runs
    assert started in [" ".join(word.value or "" for word in run.words) for run in runs]


@pytest.mark.parametrize(
    ("line", "deleted"),
    [
        ("git clean -fdx", ["."]),
        ("git clean -f a b", ["a", "b"]),
        ("git clean -n --no-dry-run -f", ["."]),
        ("git rm -r a", ["a"]),
        ("git worktree remove --force a", ["a"]),
    ],
)
def test_what_git_deletes_is_named(line: str, deleted: list[str]) -> None:
    (effect,) = _effects(line)
    assert [word.value for word in effect.deletes] == deleted


Git = Callable[..., None]


@pytest.fixture
def git() -> Git:
    program = shutil.which("git")
    if program is None:
        pytest.skip("git is not installed")

    def run(folder: Path, *words: str) -> None:
        folder.mkdir(exist_ok=True)
        variables = {**shell_environment(), "HOME": str(folder), "GIT_CONFIG_NOSYSTEM": "1"}
        options = ("-c", "user.name=a", "-c", "user.email=a@example.com")
        subprocess.run([program, *options, *words], cwd=folder, env=variables, check=True)

    return run


@pytest.mark.parametrize(
    ("text", "named"),
    [
        ('[user]\n name = a\n[alias]\n st = "!x"\n[remote "o"]\n url = x\n', ""),
        ("[core]\n hooksPath = .husky\n fsmonitor = true\n[log]\n showSignature = false", ""),
        ('[diff "x"]\n xfuncname = "^(a|b)$"\n', ""),
        ("[core]\n fsmonitor = ./x\n", "core.fsmonitor"),
        ("[CORE] FsMonitor = ./x\n", "core.fsmonitor"),
        ("[core]\n fsmonitor = \\\n./x\n", "core.fsmonitor"),
        ("[core] bare = false # c\n; c \\\n[filter.a] clean = x", "filter.a.clean"),
        ('[filter "a.b"]\n process = x\n', "filter.a.b.process"),
        ('[diff "x"]\n textconv = y\n', "diff.x.textconv"),
        ('[diff "*"]\n algorithm = y\n', "diff.*.algorithm"),
        ("[diff]\n external = y\n", "diff.external"),
        ("[gpg]\n program = y\n", "gpg.program"),
        ("[log]\n showSignature\n", "log.showsignature"),
        ("[format]\n pretty = %h %G?\n", "format.pretty"),
        ("[include]\n path = y\n", "include.path"),
        ('[includeIf "gitdir:/"]\n path = y\n', "includeif.gitdir:/.path"),
        ('[remote "o"]\n promisor = true\n', "remote.o.promisor"),
        ("[extensions]\n partialClone = o\n", "extensions.partialclone"),
        ("[core]\n worktree = /\n", "core.worktree"),
        ("[unheard]\n of = x\n", "unheard.of"),
        ('[core\n fsmonitor = "x', "not understood"),
        ("x" * 300_000, "more than"),
    ],
)
def test_the_configuration_of_a_repository(tmp_path: Path, text: str, named: str) -> None:
    (tmp_path / ".git").mkdir()
    (tmp_path / ".git/config").write_text(text)
    below = tmp_path / "a" / "b"
    below.mkdir(parents=True)
    reason = config_programs(str(below))
    assert named in reason
    assert bool(reason) is bool(named)


def test_submodules_and_linked_worktrees_are_looked_at(tmp_path: Path, git: Git) -> None:
    top = tmp_path / "top"
    git(top, "init", "-q")
    git(top / "sub", "init", "-q")
    git(top / "sub", "commit", "-q", "--allow-empty", "-m", "x")
    git(top, "add", "sub")
    git(top, "commit", "-q", "-m", "x")
    git(top, "worktree", "add", "-q", "../linked")
    assert config_programs(str(top)) == ""
    git(top / "sub", "config", "filter.x.clean", "y")
    assert "filter.x.clean" in config_programs(str(top))
    assert config_programs(str(tmp_path / "linked")) == ""
    git(top, "config", "filter.y.clean", "y")
    assert "filter.y.clean" in config_programs(str(tmp_path / "linked"))


def test_files_that_are_none_do_not_hold_the_process(tmp_path: Path) -> None:
    (tmp_path / ".git").mkdir()
    os.mkfifo(tmp_path / ".git/config")
    assert "is no file" in config_programs(str(tmp_path))
    (tmp_path / "bare" / "objects").mkdir(parents=True)
    (tmp_path / "bare" / "HEAD").touch()
    assert "bare repository" in config_programs(str(tmp_path / "bare"))


def test_git_in_a_repository_that_names_programs_is_asked_about(tmp_path: Path) -> None:
    for name in ("plain", "hostile"):
        (tmp_path / name / ".git").mkdir(parents=True)
    (tmp_path / "hostile/.git/config").write_text("[core]\nfsmonitor = ./x\n")

    def only_reads(line: str) -> bool:
        return assess_line(
            line,
            directory=str(tmp_path / "plain"),
            environment={},
            roots=Roots([tmp_path]),
            sensitive=SensitivePaths(),
        ).read_only

    assert only_reads("git status")
    assert not only_reads("git -C ../hostile status")
    assert not only_reads("cd ../hostile && git status")
    assert not only_reads("cd $x && git status")


def test_what_only_reads_does_not_write_the_index(tmp_path: Path, git: Git) -> None:
    git(tmp_path, "init", "-q")
    (tmp_path / "a").write_text("a")
    git(tmp_path, "add", "a")
    git(tmp_path, "commit", "-q", "-m", "x")
    index = tmp_path / ".git/index"
    before = index.stat()
    os.utime(tmp_path / "a", ns=(1, 1))
    for words in (("status", "-s"), ("diff",), ("diff", "--stat", "HEAD"), ("ls-files", "-m")):
        git(tmp_path, *words)
        now = index.stat()
        assert (now.st_ino, now.st_mtime_ns) == (before.st_ino, before.st_mtime_ns), words
