"""git: its sub-commands that only read, what others change, and the settings that run programs.

Options of git may be abbreviated; a row knows their full names only. A sub-command that is not here
may be an alias or a program of its own. `git_repository` judges what the repository itself makes
these commands run, and the environment of the shell keeps them from writing the index.

Source: the manual pages, `git COMMAND --git-completion-helper-all` and revision.c of git 2.39; the
forms `git config get`, `git config list` and `git config set` are of git 2.46.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace

from toolbus_toolkits.shell.commands.git_repository import runs_gpg
from toolbus_toolkits.shell.commands.table import (
    RUNS,
    Arguments,
    Command,
    Effect,
    by_name,
    by_title,
    read_arguments,
    shows,
    starts_itself,
    subcommand_effect,
    takes_words,
    unknown_command,
)
from toolbus_toolkits.shell.commands.wrappers import run_text, tails
from toolbus_toolkits.shell.reading import SimpleCommand, Word

__all__ = ["ROWS", "SPECIAL"]

# Of `git -c`: what changes how an output looks. Their values are words or numbers.
_HARMLESS_SETTINGS = frozenset(
    "core.abbrev core.quotepath core.precomposeunicode core.ignorecase diff.algorithm "
    "diff.colormoved diff.context diff.mnemonicprefix diff.noprefix diff.renamelimit diff.renames "
    "diff.wserrorhighlight grep.linenumber grep.patterntype log.abbrevcommit log.date log.decorate "
    "log.follow status.branch status.relativepaths status.short status.showuntrackedfiles "
    "advice.detachedhead advice.statushints column.ui".split()
)


def _is_harmless_setting(word: Word) -> bool:
    """Whether `git -c WORD` changes at most how an output looks."""
    if word.value is None:
        return False
    name, _, value = word.value.partition("=")
    name = name.lower()
    is_listed = name in _HARMLESS_SETTINGS or name.startswith("color.")
    return is_listed and not runs_gpg(value)


_READS_CONFIG = "--get --get-all --get-regexp --get-urlmatch -l --list"
# A change of these in a repository is an ordinary question. Any other may make later commands run
# a program, so that a person decides.
_ORDINARY_SECTIONS = frozenset(
    "advice author branch color column committer push status user".split()
)
_ORDINARY_KEYS = frozenset(
    "commit.gpgsign commit.verbose core.abbrev core.autocrlf core.eol core.filemode "
    "core.ignorecase core.longpaths core.quotepath core.safecrlf core.symlinks core.whitespace "
    "diff.algorithm diff.colormoved diff.mnemonicprefix diff.noprefix diff.renames "
    "fetch.prune fetch.prunetags init.defaultbranch log.date log.decorate merge.conflictstyle "
    "merge.ff pull.ff pull.rebase rebase.autosquash rebase.autostash rerere.enabled "
    "tag.gpgsign".split()
)


def _is_ordinary(word: Word) -> bool:
    if word.value is None or word.is_pattern:
        return False
    name = word.value.lower()
    return name.partition(".")[0] in _ORDINARY_SECTIONS or name in _ORDINARY_KEYS


def _config(arguments: Arguments) -> Effect:
    operands = arguments.operands
    # One key is read; a single word without a dot is a sub-command of later versions.
    is_key = len(operands) == 1 and "." in (operands[0].value or "")
    is_reading = arguments.has(_READS_CONFIG) or (is_key and not operands[0].is_pattern)
    if is_reading and not arguments.fault:
        return Effect(read_only=True, reads=arguments.paths())
    return _changes_config(arguments)


def _changes_config(arguments: Arguments) -> Effect:
    operands = arguments.operands
    if operands and operands[0].value in ("set", "unset"):
        operands = operands[1:]
    unknown = any(option not in arguments.row.kinds for option, _ in arguments.options)
    scope = "--global --system --worktree -f --file --blob --edit -e --remove-section"
    if unknown or arguments.has(f"{scope} --rename-section"):
        return Effect(
            why="it changes settings of git", immune="`git config` changes settings of the user"
        )
    if operands and _is_ordinary(operands[0]):
        return Effect(why="it changes a setting of the repository")
    return Effect(
        why="it changes a setting of the repository",
        immune="`git config` changes a setting that may make later commands run programs",
    )


_CONFIG_OPTIONS = (
    "--global --system --local --worktree --bool --int --bool-or-int --bool-or-str --path"
    " --expiry-date -z --null --name-only --includes --no-includes --show-origin --show-scope"
    " --show-names --fixed-value --all --regexp"
)

_CONFIG = takes_words(
    "git config",
    f"{_READS_CONFIG} {_CONFIG_OPTIONS}",
    valued="--type --default",
    files="-f --file",
    asks={
        "--add --replace-all --unset --unset-all --append": "changes a setting",
        "-e --edit --remove-section --rename-section": "changes settings",
    },
    effect=_config,
)

_CONFIG_ROWS: tuple[Command, ...] = (
    _CONFIG,
    replace(
        _CONFIG,
        name="git config get",
        flags=_CONFIG_OPTIONS,
        valued="--type --default --value --url",
        asks={},
        effect=None,
    ),
    replace(_CONFIG, name="git config list", flags=_CONFIG_OPTIONS, asks={}, effect=None),
    replace(_CONFIG, name="git config set, git config unset", effect=_changes_config),
)


# Their words are those of diff, as diff-options of the manual has them. `-O` is left out: up to git
# 2.20 its file had to follow at once. `--remerge-diff` too: it runs merge drivers.
_DIFF_FLAGS = (
    "-p -u --patch -s --no-patch -W --function-context --no-function-context --raw --patch-with-raw"
    " --patch-with-stat --numstat --shortstat --cumulative --check --summary --name-only"
    " --name-status --compact-summary --no-compact-summary --binary --full-index --no-full-index"
    " --no-color --no-abbrev -z --no-prefix --default-prefix --irreversible-delete -D"
    " --find-copies-harder --no-find-copies-harder --no-renames --rename-empty --no-rename-empty"
    " --follow --no-follow --minimal --no-minimal -w --ignore-all-space -b --ignore-space-change"
    " --ignore-space-at-eol --ignore-cr-at-eol --ignore-blank-lines --no-ignore-matching-lines"
    " --indent-heuristic --no-indent-heuristic --patience --histogram --no-color-moved"
    " --no-color-moved-ws --no-relative -a --text --no-text -R --exit-code --no-exit-code -q"
    " --quiet --no-quiet --no-ext-diff --no-textconv --ita-invisible-in-index"
    " --ita-visible-in-index --pickaxe-all --pickaxe-regex"
)
_DIFF_VALUED = (
    "--stat-width --stat-name-width --stat-graph-width --stat-count --ws-error-highlight"
    " --src-prefix --dst-prefix --line-prefix --inter-hunk-context --output-indicator-new"
    " --output-indicator-old --output-indicator-context -l -I --ignore-matching-lines"
    " --diff-algorithm --anchored --word-diff-regex --color-moved-ws -S -G --find-object"
    " --diff-filter --rotate-to --skip-to"
)
_DIFF_OPTIONAL = (
    "-U --unified -X --dirstat --dirstat-by-file --stat --color --abbrev -B --break-rewrites -M"
    " --find-renames -C --find-copies --word-diff --color-words --color-moved --relative"
    " --ignore-submodules --submodule"
)
_DIFF_ASKS = {
    "--output": "writes a file",
    "--ext-diff --textconv": "runs programs that the configuration names",
}
# Of revision.c; a value of `--format`, `--min-parents` and `--max-parents` only follows at once.
_REVISION_FLAGS = (
    "--all --not --do-walk --indexed-objects --alternate-refs --reflog --single-worktree"
    " --first-parent --exclude-first-parent-only -g --walk-reflogs --merge --topo-order"
    " --simplify-merges --simplify-by-decoration --date-order --author-date-order --parents"
    " --children --dense --sparse --in-commit-order --remove-empty --merges --no-merges"
    " --no-min-parents --no-max-parents --boundary --left-right --left-only --right-only --cherry"
    " --cherry-mark --cherry-pick -r -t --no-expand-tabs --no-notes --standard-notes --oneline"
    " --graph --no-graph --encode-email-headers --no-encode-email-headers --root --no-commit-id"
    " --always --abbrev-commit --no-abbrev-commit --full-diff --show-pulls --full-history"
    " --relative-date --log-size --reverse --ignore-missing -i --regexp-ignore-case -E"
    " --extended-regexp -F --fixed-strings --basic-regexp -P --perl-regexp --all-match"
    " --invert-grep --no-show-signature -c --cc -m --combined-all-paths --no-diff-merges --dd"
)
_REVISION_VALUED = (
    "-n --max-count --skip --max-age --since --since-as-filter --after --min-age --before --until"
    " --date --author --committer --grep --grep-reflog --encoding --glob --exclude --default"
    " --diff-merges"
)
_REVISION_OPTIONAL = (
    "--branches --tags --remotes --no-walk --ancestry-path --min-parents --max-parents --pretty"
    " --format --expand-tabs --notes --show-notes --show-linear-break"
)
_REVISION_ASKS = {"--show-signature": "runs gpg"}
_LOG_FLAGS = (
    "--source --use-mailmap --no-use-mailmap --mailmap --no-mailmap --clear-decorations"
    " --no-decorate"
)
_HARMLESS_MERGES = frozenset(
    "off none on m first-parent 1 separate combined c dense-combined cc".split()
)
_FILTERS = "--contains --no-contains --with --without --merged --no-merged"
"""A value of these follows, but if they stand last they have none; then it counts as an operand,
which is why they are among the options whose value follows at once."""


def _reading(arguments: Arguments) -> Effect:
    """Read revisions and paths; `HEAD:file` is a path, too."""
    if doubt := _doubt(arguments):
        return Effect(why=doubt)
    for word in arguments.values("--pretty --format --sort"):
        if word.value is None or runs_gpg(word.value):
            return Effect(why=f"`{word.source}` may run gpg")
    for word in arguments.values("--diff-merges"):
        if word.value not in _HARMLESS_MERGES:
            return Effect(why=f"`{word.source}` may merge, which runs programs")
    paths = arguments.paths()
    is_recursive = _leaves_repository(arguments)
    if is_recursive and not paths:
        paths = (Word(".", "."),)
    reads = (
        replace(word, value=word.value and word.value.rpartition(":")[2])
        for word in (*paths, *arguments.values("-L"))
    )
    return Effect(read_only=True, reads=tuple(reads), is_recursive=is_recursive)


def _doubt(arguments: Arguments) -> str:
    """Return why git may see other options than the row does, as a clause.

    Some commands read their words twice: first for their own options, where others count as plain
    words, then for those of revisions and diffs. `git log --grep --decorate-refs -p --author
    --output=x` writes x: the first reading takes `--decorate-refs -p` out. That needs a value that
    looks like an option. In the second one only options of diff are letters that stand together.
    """
    for name, value in arguments.options:
        if value is None or not any(value is word for word in arguments.command.words):
            continue
        if value.value is None or value.value.startswith("-"):
            return f"the value of `{name}` may be an option"
    if "--pickaxe-all" not in arguments.row.kinds:
        return ""
    for word in arguments.command.words:
        letters = word.known[1:]
        if not word.source.startswith("-") or arguments.row.kinds.get(f"-{letters[:1]}") != "flag":
            continue
        if any(arguments.row.kinds.get(f"-{letter}") == "value" for letter in letters[1:]):
            return f"the options of `{word.source}` may be others"
    return ""


def _leaves_repository(arguments: Arguments) -> bool:
    # git compares and searches whole folders that are no part of the repository.
    if arguments.has("--no-index --untracked"):
        return True
    if arguments.row.name not in ("git diff", "git grep"):
        return False
    return any(
        word.value is None or word.value.startswith("/") or ".." in word.value.split("/")
        for word in arguments.operands
    )


def _listing(arguments: Arguments) -> Effect:
    """List branches or tags; without an option that selects, an operand creates one."""
    selects = f"--list --points-at {_FILTERS}"
    if arguments.row.name == "git tag":
        selects += " -l -n"
    # An option that stands last has no value; in front of `--` its value is `--`.
    names = [word.known for word in arguments.operands]
    if arguments.operands and not (
        arguments.has(selects) and all(name[:1] != "-" for name in names)
    ):
        return Effect(why=f"`{arguments.row.name}` with a name creates or changes it")
    return replace(_reading(arguments), reads=())


def _remote_show(arguments: Arguments) -> Effect:
    if arguments.operands and not arguments.has("-n"):
        return Effect(why="it asks another machine")
    return Effect(read_only=True, reads=())


def _clean(arguments: Arguments) -> Effect:
    if arguments.has("-n --dry-run") and not arguments.fault:
        return Effect(read_only=True, reads=())
    deletes = arguments.operands or (Word(".", "."),)
    return Effect(why="it deletes files that are not in the repository", deletes=deletes)


def _removal(arguments: Arguments) -> Effect:
    return Effect(why="it deletes files", deletes=arguments.operands)


_LOG = Command(
    "git log",
    f"{_DIFF_FLAGS} {_REVISION_FLAGS} {_LOG_FLAGS}",
    valued=f"{_DIFF_VALUED} {_REVISION_VALUED} -L --decorate-refs --decorate-refs-exclude",
    optional=f"{_DIFF_OPTIONAL} {_REVISION_OPTIONAL} --decorate",
    asks={**_DIFF_ASKS, **_REVISION_ASKS},
    digits=True,
    effect=_reading,
)
_DIFF = Command(
    "git diff",
    f"{_DIFF_FLAGS} --cached --staged --merge-base --no-index --base --ours --theirs -c --cc",
    valued=_DIFF_VALUED,
    optional=_DIFF_OPTIONAL,
    asks=_DIFF_ASKS,
    digits=True,
    effect=_reading,
)
_BLAME = Command(
    "git blame, git annotate",
    "-b -l -t -s -e -f -n -p -w -c --root --show-stats --progress --no-progress --score-debug"
    " --show-name --show-number --porcelain --line-porcelain --incremental --show-email --minimal"
    " --color-lines --color-by-age --first-parent --reverse",
    valued="-L --ignore-rev --date --since",
    files="-S --contents --ignore-revs-file",
    optional="-C -M --abbrev",
    asks={"--textconv": "runs programs that the configuration names"},
    effect=_reading,
)
_NO_WORDS = takes_words(
    "git remote", "-v --verbose", at_most=0, beyond="its sub-command is not known to only read"
)

ROWS: tuple[Command, ...] = (
    Command(
        "git status",
        "-v --verbose -s --short -b --branch --show-stash --ahead-behind --no-ahead-behind --long"
        " -z --null --no-column --no-renames --renames --no-short --no-branch --no-verbose",
        optional="--porcelain -u --untracked-files --ignored --ignore-submodules --column -M"
        " --find-renames",
        effect=_reading,
    ),
    _LOG,
    replace(_LOG, name="git show, git whatchanged, git stash list, git reflog show"),
    replace(
        # Behind an option that git does not know here, a word may be a sub-command: `-n expire`.
        _NO_WORDS,
        name="git reflog",
        flags="--all --oneline --stat -p --patch --no-patch --abbrev-commit --relative-date",
        optional="-n --max-count --date --format --pretty --since --until --decorate",
        digits=True,
        effect=_reading,
    ),
    _DIFF,
    replace(
        _DIFF,
        name="git stash show",
        flags=f"{_DIFF_FLAGS} --include-untracked --no-include-untracked --only-untracked",
        # It sorts words by their first letter: a value would come apart from its option.
        valued="",
    ),
    replace(
        _LOG,
        name="git diff-tree",
        flags=f"{_DIFF_FLAGS} {_REVISION_FLAGS} -v --stdin --merge-base",
        valued=f"{_DIFF_VALUED} {_REVISION_VALUED}",
    ),
    replace(_DIFF, name="git diff-index", flags=f"{_DIFF_FLAGS} --cached -m --merge-base -c --cc"),
    replace(_DIFF, name="git diff-files", flags=f"{_DIFF_FLAGS} --base --ours --theirs -c --cc"),
    replace(
        _DIFF,
        name="git range-diff",
        flags=f"{_DIFF_FLAGS} --no-dual-color --dual-color --left-only --right-only --no-notes",
        valued=f"{_DIFF_VALUED} --creation-factor",
        optional=f"{_DIFF_OPTIONAL} --notes",
    ),
    takes_words(
        "git branch",
        "-v --verbose -q --quiet -a --all -r --remotes -l --list --show-current -i --ignore-case"
        " --no-color --no-column --no-abbrev",
        valued="--sort --points-at --format",
        optional=f"{_FILTERS} --abbrev --color --column",
        asks={
            "-d --delete -D": "deletes a branch, and with it commits that no other has",
            "-m --move -M": "renames a branch",
            "-c --copy -C": "copies a branch",
            "-f --force": "overwrites a branch",
        },
        effect=_listing,
    ),
    takes_words(
        "git tag",
        "-l --list -i --ignore-case --no-column --no-color",
        valued="--sort --format",
        optional=f"{_FILTERS} --points-at -n --column --color",
        asks={"-d --delete": "deletes a tag", "-f --force": "overwrites a tag", "-v": "runs gpg"},
        effect=_listing,
    ),
    _NO_WORDS,
    shows("git remote get-url", "--push --all"),
    takes_words("git remote show", "-n -v", effect=_remote_show),
    shows(
        "git ls-files",
        "-c --cached -d --deleted -m --modified -o --others -i --ignored -s --stage -k --killed -t"
        " -v -f -u --unmerged -z --eol --directory --no-empty-directory --empty-directory"
        " --resolve-undo --exclude-standard --full-name --recurse-submodules --error-unmatch"
        " --debug --deduplicate --sparse",
        valued="-x --exclude --exclude-per-directory --with-tree --format",
        files="-X --exclude-from",
        optional="--abbrev",
    ),
    shows(
        "git ls-tree",
        "-d -r -t -l --long -z --name-only --name-status --object-only --full-name --full-tree",
        valued="--format",
        optional="--abbrev",
    ),
    Command(
        "git cat-file",
        "-t -s -p -e --batch-all-objects --buffer --unordered --follow-symlinks --use-mailmap"
        " --no-use-mailmap --mailmap --no-mailmap -z -Z",
        optional="--batch-check",
        asks={
            "--batch --batch-command": "shows what its input names",
            "--textconv --filters": "runs programs that the configuration names",
        },
        effect=_reading,
    ),
    shows(
        "git rev-parse",
        "--show-toplevel --git-dir --absolute-git-dir --git-common-dir --show-prefix --show-cdup"
        " --is-inside-work-tree --is-inside-git-dir --is-bare-repository --is-shallow-repository"
        " --show-superproject-working-tree --shared-index-path --local-env-vars --verify -q --quiet"
        " --symbolic --symbolic-full-name --all --not --revs-only --no-revs --flags --no-flags"
        " --sq",
        valued="--git-path --default --prefix",
        optional="--abbrev-ref --short --branches --tags --remotes --glob --exclude"
        " --show-object-format --show-ref-format --path-format --since --until --after --before"
        " --disambiguate",
    ),
    Command(
        "git rev-list",
        f"{_REVISION_FLAGS} --count --header --timestamp --objects --no-object-names"
        " --no-commit-header --commit-header --quiet",
        valued=_REVISION_VALUED,
        optional=f"{_REVISION_OPTIONAL} --abbrev",
        asks=_REVISION_ASKS,
        digits=True,
        effect=_reading,
    ),
    takes_words(
        "git describe",
        "--contains --debug --all --tags --long --first-parent --exact-match --always",
        valued="--candidates --match --exclude",
        optional="--abbrev",
        asks={"--dirty --broken": "writes the index of the repository"},
    ),
    Command(
        "git shortlog",
        f"-s --summary -n --numbered -e --email -c --committer"
        f" {_REVISION_FLAGS.replace(' -c ', ' ')}",
        valued="--max-count --skip --since --after --before --until --date --author --grep --glob"
        " --exclude --group",
        optional=f"{_REVISION_OPTIONAL} -w",
        asks=_REVISION_ASKS,
        effect=_reading,
    ),
    _BLAME,
    Command(
        "git grep",
        "--cached --no-index --untracked --exclude-standard --no-exclude-standard"
        " --recurse-submodules -v --invert-match -i --ignore-case -w --word-regexp -a --text -I -r"
        " --recursive --no-recursive -E --extended-regexp -G --basic-regexp -F --fixed-strings -P"
        " --perl-regexp -n --line-number --column -h -H --full-name -l --files-with-matches"
        " --name-only -L --files-without-match -z --null -o --only-matching -c --count --break"
        " --heading -p --show-function -W --function-context --and --or --not -q --quiet"
        " --all-match --no-color --no-textconv",
        valued="-A --after-context -B --before-context -C --context -m --max-count --max-depth"
        " --threads -e",
        files="-f",
        optional="--color",
        asks={
            "-O --open-files-in-pager": "runs a program",
            "--textconv --ext-grep": "runs programs that the configuration names",
        },
        recursive="--no-index --untracked",
        leading=1,
        leading_given_by="-e -f",
        digits=True,
        effect=_reading,
    ),
    replace(_NO_WORDS, name="git reflog exists", flags="", at_most=1),
    *_CONFIG_ROWS,
    replace(_NO_WORDS, name="git worktree list", flags="-v --verbose --porcelain -z"),
    replace(_NO_WORDS, name="git submodule", flags="--cached --quiet"),
    takes_words("git submodule status", "--cached --recursive"),
    shows(
        "git name-rev",
        "--name-only --tags --all --undefined --always --stdin --annotate-stdin",
        valued="--refs --exclude",
    ),
    shows("git merge-base", "-a --all --octopus --independent --is-ancestor --fork-point"),
    takes_words(
        "git for-each-ref",
        "-s --shell -p --perl --python --tcl --ignore-case --omit-empty",
        valued="--count --format --sort --points-at --exclude",
        optional=f"{_FILTERS} --color",
        effect=_reading,
    ),
    shows(
        "git show-ref",
        "-q --quiet --verify --head -d --dereference --tags --heads --branches --exists",
        optional="--hash -s --abbrev --exclude-existing",
    ),
    takes_words(
        "git symbolic-ref",
        "-q --quiet --short --recurse --no-recurse",
        asks={"-d --delete": "deletes a reference"},
        at_most=1,
        beyond="the second operand is what the reference is changed to",
    ),
    shows("git count-objects", "-v --verbose -H --human-readable"),
    shows("git check-ignore", "-q --quiet -v --verbose -n --non-matching --no-index --stdin -z"),
    shows("git check-attr", "-a --all --cached --stdin -z", valued="--source"),
    takes_words("git var", "-l"),
    takes_words("git version", "--build-options"),
    takes_words("git cherry", "-v --verbose", optional="--abbrev"),
    takes_words(
        "git fsck",
        "-v --verbose --unreachable --dangling --no-dangling --tags --root --cache --no-reflogs"
        " --full --no-full --connectivity-only --strict --progress --no-progress --name-objects",
        asks={"--lost-found": "writes files"},
    ),
    replace(_NO_WORDS, name="git notes, git bisect log", flags=""),
    shows("git notes list"),
    takes_words("git notes show"),
    Command("git bundle verify", "-q --quiet"),
    Command("git bundle list-heads"),
    Command(
        "git clean",
        "-n --dry-run -d -x -X -q --quiet -f --force",
        valued="-e --exclude",
        effect=_clean,
    ),
    Command(
        "git rm",
        "-r -f --force -q --quiet --cached -n --dry-run --ignore-unmatch --sparse",
        files="--pathspec-from-file",
        effect=_removal,
    ),
    Command("git worktree remove", "-f --force", effect=_removal),
)

_NETWORK = "it asks another machine"
_WHYS: Mapping[str, str] = {
    "git add": "it changes what is committed next, and runs filters of the configuration",
    "git am, git cherry-pick, git revert": "it changes files and commits",
    "git apply": "it changes files",
    "git archive": "it may write a file, or ask another machine",
    "git bisect": "it checks out other commits",
    "git checkout": "it replaces files, and what is not committed may be lost",
    "git clone": "it copies a repository from another machine",
    "git commit": "it commits, and runs hooks of the repository",
    "git config edit": "it opens an editor",
    "git credential": "it reads or changes passwords",
    "git difftool, git filter-branch, git mergetool": RUNS,
    "git fetch, git ls-remote": _NETWORK,
    "git gc, git prune": "it deletes objects that nothing refers to",
    "git help": "it opens a pager or a browser",
    "git init": "it makes a repository",
    "git merge": "it changes files and commits, and runs hooks of the repository",
    "git mv": "it renames files",
    "git notes": "it changes notes of commits",
    "git pull": "it asks another machine, and changes files and commits",
    "git push": "it changes a repository on another machine",
    "git rebase": "it rewrites commits",
    "git reflog expire, git reflog delete": (
        "it deletes entries, and with them what they could bring back"
    ),
    "git remote": "it changes the remotes of the repository, or asks another machine",
    "git reset": "it changes what is committed next, and where the branch stands",
    "git restore": "it replaces files, and what is not committed is lost",
    "git stash": "it takes what is not committed out of the files",
    "git stash clear": "it deletes all stashes",
    "git stash drop": "it deletes a stash",
    "git submodule": "it changes submodules, or runs commands in them",
    "git switch": "it checks out another branch",
    "git verify-commit, git verify-tag": "it runs gpg",
    "git worktree": "it changes the worktrees of the repository",
}
_FORCED = {
    "git push --force, git push -f": "it overwrites commits on another machine",
    "git push --delete": "it deletes a branch or a tag on another machine",
    "git push --mirror": "it makes another repository the same, and deletes what it has more",
    "git reset --hard": "it replaces all files, and what is not committed is lost",
    "git switch --discard-changes, git switch -f": (
        "it replaces files, and what is not committed is lost"
    ),
}

_TOP = Command(
    "git",
    "--no-pager -P --no-replace-objects --literal-pathspecs --glob-pathspecs --noglob-pathspecs"
    " --icase-pathspecs --no-optional-locks --no-lazy-fetch --no-advice --version -v --html-path"
    " --man-path --info-path",
    valued="-C -c --git-dir --work-tree --namespace --super-prefix --config-env --attr-source",
    asks={
        "-p --paginate": "runs a pager",
        "--exec-path": "names the folder of git's programs",
        "--bare": "takes the folder as a repository",
        "-h --help": "opens a pager or a browser",
    },
    permutes=False,
    # git itself has no `--`.
    ends_options=False,
)
_ELSEWHERE = "--git-dir --work-tree --namespace --super-prefix --config-env --attr-source"


def _git(command: SimpleCommand) -> Effect:
    arguments = read_arguments(_TOP, command)
    if arguments.first_operand > 1:
        return _with_options(arguments)
    if len(command.words) == 1 and not command.takes_more:
        return Effect(read_only=True, reads=())
    effect = subcommand_effect(command, "git", _ROWS_BY_NAME, _CLAUSES)
    if effect.read_only or len(command.words) < 2:
        return effect
    title = f"git {command.words[1].value}"
    for word in command.words[2:]:
        if clause := _CLAUSES_OF_OPTIONS.get(f"{title} {word.value}"):
            force = Word("--force", "--force")
            words = (force if word.value == "-f" else word for word in command.words)
            same = (replace(command, words=tuple(words)),) if title == "git push" else ()
            return replace(effect, why=clause, same=same)
    return _starts(command, title, effect)


def _with_options(arguments: Arguments) -> Effect:
    effect = starts_itself(arguments)
    directories = arguments.values("-C")
    if len(directories) == 1:
        effect = replace(effect, directory=directories[0])
    elif directories:
        # Each is relative to the one before.
        effect = replace(effect, directory=Word("-C", None))
    why = ""
    for word in arguments.values("-c"):
        if not _is_harmless_setting(word):
            why = f"`-c {word.source}` sets what git may run"
        if word.value is None or word.value.lower().startswith("alias."):
            # `git -c alias.x=push x` is any command of git, or of the system.
            effect = replace(effect, same=(unknown_command(word.source),))
    if arguments.has("--config-env"):
        effect = replace(effect, same=(unknown_command("--config-env"),))
    reads = all(run.words[0].value == "git" and _git(run).read_only for run in effect.runs)
    if arguments.has(_ELSEWHERE) or (directories and not reads):
        why = "its options name another repository or other settings"
    if why and not effect.why:
        effect = replace(effect, read_only=False, why=why, is_transparent=False)
    return effect


def _starts(command: SimpleCommand, title: str, effect: Effect) -> Effect:
    """Add the commands that a sub-command starts: `git bisect run`, `git rebase --exec`."""
    values = [word.value for word in command.words[2:]]
    if title == "git bisect" and values[:1] in ([], ["run"], [None]):
        return replace(effect, why="it runs a command", runs=tails(command, 3))
    if title == "git submodule" and ({"foreach", None} & {*values} or command.takes_more):
        return replace(effect, why="it runs a command in submodules", runs=_texts(command))
    if title == "git rebase" and any((value or "").startswith(("-x", "--ex")) for value in values):
        return replace(effect, why="it rewrites commits, and runs a command", runs=_texts(command))
    return effect


def _texts(command: SimpleCommand) -> tuple[SimpleCommand, ...]:
    """Return the commands of words that git gives to a shell, and those that words may begin."""
    runs = list(tails(command, 2))
    for word in command.words[2:]:
        text = (word.value or "").removeprefix("-x").removeprefix("--exec=")
        if " " in text or text != word.value:
            commands, _ = run_text(text, word.source)
            runs.extend(commands)
    return tuple(runs)


_ROWS_BY_NAME = by_name(*ROWS)
_CLAUSES = by_title(_WHYS)
_CLAUSES_OF_OPTIONS = by_title(_FORCED)

SPECIAL: Mapping[str, Callable[[SimpleCommand], Effect]] = {"git": _git}
