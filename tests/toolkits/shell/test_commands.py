"""What the descriptions of commands say: which lines only read, and what the others do."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from toolbus_toolkits.shell.commands import MODULES, SPECIAL, Effect, effect_of
from toolbus_toolkits.shell.commands.table import Command
from toolbus_toolkits.shell.reading import SimpleCommand, Word, read_line

READ_ONLY = """
ls -la --color=auto /tmp
/usr/bin/ls *
cat -- -n
cat *
head -5 a
head -n 5 a b
tail -n +5 a
wc -l "$f"
sort -k1,2 -t: -nr a
sort -- "$f"
sort ./*
uniq -c a
cut -d: -f1 a
date +%Y
date -d yesterday
hostname -f
xxd -l 16 a
xxd a
seq 5 -1 1
grep -rn --include=*.py -e "$x" src
grep -A3 foo a
rg -n -g '*.py' foo src
diff -u a b
jq -r '.a[]' a
jq --arg a b .x a
file a
less a
find . -name '*.py' -newermt 2020-01-01 -print0
find src -type f ( -name a -o -name b )
find . -type f -exec grep -l foo {} +
find . -name '*.py' -exec wc -l {} ;
sed -n '1,5p' a
sed -e 's/a/b/g' -e '/x/,/y/d' a
sed 's/[^/]*$//' a
sed -n '$!{$!N;p}' a
awk '{print $1}' a
awk -F: '$3 > 5 {print $1 " > " $2}' a
awk '/foo/ && NR == 1' a
awk -v x=1 'NR==x || x' a
env
env FOO=1 ls
env -C src ls
nice -n 5 ls
nice -5 ls
timeout -k 5 10 ls -l
time -p ls
nohup ls
command -v git
command ls
xargs
xargs -n1 grep foo
xargs -I{} cat {}
xargs -0 sort --
bash -c 'ls | wc -l'
sh -c 'ls && cat a 2>&1'
eval ls -l
trap 'ls' EXIT
trap - INT
tar tzf a.tgz
tar -tvf a.tar
unzip -l a.zip
gzip -dc a.gz
gzip
zcat a.gz
xz -l a.xz
ps aux
kill -l
kill -0 12
kill -0 "$pid" && kill -0 $!
ip -br addr show
ip a
ss -ltnp
lsof -i:80
dmesg -T
man -k x
man -w ls
python3 --version
node -v
cd src
cd -- "$d"
test -f a
[ -f a ]
printf '%s\\n' "$x"
export LANG
set -euo pipefail
dd if=a bs=1 count=1
crontab -l
fdisk -l
"""

ASKS = {
    "ls --colour": "`--colour` of `ls` is not known",
    "./ls": "`./ls` is not known",
    "/tmp/bin/ls": "is not known",
    "frobnicate x": "`frobnicate` is not known",
    "sort -o a b": "`-o` writes a file",
    "sort a b -noc": "`-o` writes a file",
    "sort --output=c a": "`--output` writes a file",
    "sort --outp=c a": "`--outp` of `sort` is not known",
    "sort --reverse=1 a": "is not known",
    "sort $x": "may become an option",
    'sort "$x"': "may become an option",
    "sort *": "may become an option",
    "sort -k $x -- a": "may become an option",
    "sort -k": "has no value",
    'sort "-$x"': "may become an option",
    'sort "-n$x"': "may become an option",
    "uniq a b": "a file that it writes",
    "uniq a -c": "a file that it writes",
    "uniq *": "a file that it writes",
    "xxd a b": "a file that it writes",
    "xxd -r -p a b": "a file that it writes",
    "date -s 10:00": "sets the clock",
    "date 01010101": "sets the clock",
    'date "$x"': "may become an option",
    "hostname box": "sets the name",
    "shuf -o a b": "writes a file",
    "iconv -f a -t b -o c d": "writes a file",
    "file -C -m a": "writes a file",
    "tree -o a": "writes a file",
    "rg --pre ./x foo": "runs a program",
    "rg --pre=./x foo": "runs a program",
    "rg -z foo": "runs programs",
    "ag --pager sh foo": "runs a program",
    "less +!sh a": "runs",
    "less -ofile a": "writes a file",
    "diff3 --diff-program=x a b c": "runs a program",
    "yq -i .a=1 a": "changes its files",
    "printf %n PATH": "may set a variable",
    "alias ls=rm": "changes what later commands are",
    "hash -p /tmp/x ls": "sets what a command is",
    "jobs -x rm a": "runs a command",
    "wait -p x": "sets a variable",
    "shopt -s dotglob": "may change",
    "split a": "writes files",
    "find . -delete": "deletes",
    "find . -fprint a": "`-fprint` writes",
    "find . -name $x": "may become an action",
    "find . -name *": "may become an action",
    "find $x -name a": "may become an action",
    "find . -frob": "`-frob` of `find` is not known",
    "find . -exec rm {}": "has no end",
    "fd -x rm": "runs a command",
    "sed -i.bak s/a/b/ a": "changes its files",
    "sed -f a b": "a script of a file",
    'sed -e "$x" a': "known only when the line runs",
    "sed -n w/tmp/x a": "`w` of its script writes a file",
    "sed 's/a/b/w x' a": "`w` of its script writes a file",
    "sed 's/a/b/e' a": "`e` of its script runs a command",
    "sed '1e rm x' a": "`e` of its script runs a command",
    "sed 'r x' a": "`r` of its script reads a file",
    "sed '#x\\\nw f' a": "`w` of its script writes a file",
    "sed 's/[[:alpha:]/w f/' a": "is not understood",
    "sed 's/[/]/w f/' a": "is not understood",
    "sed 'a\\ \nw f' a": "`w` of its script writes",
    "sed 'a\nw f' a": "is not understood",
    "sed -n p a --in-place": "changes its files",
    """awk '{print > "f"}'""": "`>` of its program may write",
    """awk '{print | "sh"}'""": "a pipe of its program",
    """awk 'BEGIN{system("x")}'""": "`system` of its program",
    """awk '{a / b; print c > "f" / d}'""": "`>` of its program may write",
    """awk '{x = "a" # "\n print > "f"}'""": "is not understood",
    """awk '@x()'""": "is not understood",
    "awk -f a b": "a program of a file",
    'awk "$x" a': "may become an option",
    "env -S 'rm x'": "makes words of a text",
    "env -i ls": "takes away",
    "env --frob ls": "is not known",
    "/usr/bin/time -o f ls": "writes a file",
    "ionice -p 5": "changes a process",
    "sudo ls": "as another user",
    "flock a ls": "runs other commands",
    "bash a": "runs a script",
    "bash -l -c ls": "runs the profile",
    "bash +x -c ls": "is an option that is not known",
    "sh -c 'ls &> a'": "in another way than bash",
    "sh -c '((rm x))'": "is not understood",
    "watch 'ls &> a'": "in another way than bash",
    "sh -c 'export LANG=$x'": "in another way than bash",
    "env 'BASH_FUNC_ls%%=() { rm x; }' ls": "is not understood",
    "tree -PI a -- -o b": "is not known",
    "less -b -- -ob": "is not known",
    "zstd -c -T -o a b": "is not known",
    "lsof -F -- -Da": "is not known",
    "zsh -c ls": "is not read",
    "source a": "the commands of a file",
    "python3 -c 'x'": "a language that is not read",
    "python3.12 -m pytest": "runs a program",
    "perl -pe x a": "a language that is not read",
    "tar xf a": "unpacks files",
    "tar -xf a": "unpacks files",
    "tar cf a b": "writes an archive",
    "tar tf host:a": "another machine",
    "tar tfC a b": "is not known",
    "tar tf a --to-command=sh": "runs a program",
    "unzip a": "unpacks files",
    "gzip a": "replaces files",
    "xz -l -z a": "replaces files",
    "xargs -o sort": "may become an option",
    "xargs uniq": "a file that it writes",
    "kill 12": "ends processes",
    "kill -0 -s KILL 12": "ends processes",
    "kill -0 $x 12": "ends processes",
    "xargs kill -0": "ends processes",
    "lsof -g -Dbx": "writes a file",
    "pkill x": "ends processes",
    "ip link set eth0 down": "changes the network",
    "ip -batch a": "runs commands of a file",
    "ss -K": "closes connections",
    "dmesg -c": "clears",
    "man ./a": "no manual page",
    "man -P sh ls": "runs a program",
    "chmod +x a": "it changes who",
    "rm --no-preserve-root -rf a": "lets it delete the root",
    "rm --frob a": "is not known",
    "cp --parents a b": "makes folders",
    "ln -d a b": "links folders",
    "install -s a b": "runs a program",
}

IMMUNE = """
eval "$x"
bash -c "$x"
bash -c "ls; $x"
sh
bash -s
trap "$x" EXIT
. "$x"
python3
python3 -
python3 -c "$x"
perl -ne "$x" a
parallel rm
xargs bash -c
xargs env
xargs -I{} sh -c {}
xargs -I{} sh -c 'ls {}'
dd if=a of=/dev/sda
dd of=/dev/../dev/sda if=a
chmod -R 777 a
chmod -R a+rwx a
chmod -R o+w .
chmod --recursive u=rwx,go=rw a
chown -R me /
chown -R me /etc
kill -9 -1
kill -s KILL -- -1
kill -1 -1
pkill -9 .
mkfs.ext4 a
fdisk /dev/sda
shutdown now
iptables -F
userdel x
crontab -r
crontab a
at now
find . -exec bash -c {} ;
sed '1e x' a
"""

CHANGES = {
    "mkdir -p a b": "a b",
    "touch -t 01010101 a": "a",
    "truncate -s 0 a": "a",
    "tee -a a b": "a b",
    "rm -rf a b": "a b - a b",
    "rm -- -f": "-f - -f",
    "rmdir a": "a - a",
    "mv a b": "a b b/a - a",
    "mv x/a y/b d": "x/a y/b d d/a d/b - x/a y/b",
    "mv -t d a b": "a b d d/a d/b - a b",
    "mv -T a b": "a b - a",
    "cp -r x/.bashrc d": "d d/.bashrc",
    "cp --target-directory=d a": "d d/a",
    "cp a/.. d": "d ?d/",
    "cp -T a b": "b",
    "ln -s /etc/x d/l": "/etc/x d/l d/l/x /etc/x /etc/x",
    "ln -s ../x d/l": "../x d/l d/l/x d/../x d/l/../x",
    "ln -s x foo/": "x foo/ foo//x ./x foo/x",
    "install -m 755 a b": "b b/a",
    "sed -i s/a/b/ a b": "a b",
    "sed -i.o s/a/b/ a": "a a.o",
    "dd if=a of=b": "b",
    "rm --frob a": None,
    "rm $x": None,
    "rmdir -p a/b": None,
    "sed -i 's/a/b/w x' a": None,
    "sed -ix/y s/a/b/ a": None,
}

DELETES = {
    "rm --frob -rf /": "/",
    "find / -delete": "/",
    "find -name a -delete": ".",
    "find / -frob -delete": "/",
    "mv / x": "/",
    "shred -u a": "a",
}

RUNS = {
    "env -u X A=1 rm x": ["X= A=1 rm x"],
    "nice -n 5 timeout 5 rm x": ["timeout 5 rm x"],
    "nice --frob rm x": ["rm x", "x"],
    "timeout $t rm x": ["$t rm x", "rm x", "x"],
    "sudo -u me rm x": ["rm x"],
    "sudo --frob me rm x": ["me rm x", "rm x", "x"],
    "env -S 'a b' rm x": ["a b rm x", "rm x", "x", "?"],
    "xargs -n 1 rm -f": ["rm -f ..."],
    "xargs -I % rm a%b": ["rm ?a"],
    "xargs -i rm {}": ["rm ?"],
    "xargs --frob rm x": ["rm x ...", "x ...", "?"],
    "find a b -exec rm {} +": ["rm ?a ...", "rm ?b ..."],
    "find . -execdir rm x{} ;": ["rm ?x"],
    "find . -exec rm {} ; -exec ls ;": ["rm ?.", "ls"],
    "find . -frob -exec rm x ;": [". -frob -exec rm x ;", "rm x ;", "x ;", ";"],
    "bash -c 'ls; rm x'": ["ls", "rm x"],
    "bash --frob -c 'rm x'": ["rm x", "rm x"],
    "sh -c 'rm x &> y'": ["rm x"],
    "zsh -c 'rm x'": ["rm x", "rm x"],
    "su me -c 'rm x'": ["me -c rm x", "rm x", "rm x"],
    "busybox rm x": ["rm x", "x"],
    "eval rm 'x; ls'": ["rm x", "ls"],
    "watch -n 5 'rm x; ls'": ["rm x", "ls"],
    "watch -x rm x": ["rm x"],
    "trap 'rm x' EXIT": ["rm x"],
    "command -p rm x": ["rm x"],
    "fd foo -x rm x": ["foo -x rm x", "rm x", "x"],
    "export LD_PRELOAD=x": ["LD_PRELOAD=x"],
    "unset GIT_CONFIG_COUNT": ["GIT_CONFIG_COUNT=?"],
    "read -r PATH": ["PATH=?"],
}

READS = {
    "grep -f a foo b": "a foo b",
    "grep foo a b": "a b",
    "grep $x a": "? a",
    "grep -r foo": ".",
    "sed -n -e p a": "a",
    "sort --files0-from=a b": None,
    "wc --files0-from=a": "a",
    "cp a b c": "a b",
    "echo /etc/shadow": "",
    "jq --rawfile x /etc/shadow . a": ". a /etc/shadow",
    "xargs cat": "?",
    "sort -o a b": None,
}


def command_of(line: str) -> SimpleCommand:
    """Return the only command of a line; `(`, `)`, `;` and `{}` as words are plain."""
    words = [f"'{word}'" if word in ("(", ")", ";", "{}") else word for word in line.split(" ")]
    reading = read_line(" ".join(words), {"HOME": "/home/ann"})
    assert not reading.faults, reading.faults
    return reading.commands[0]


def started(command: SimpleCommand) -> Iterator[tuple[SimpleCommand, Effect]]:
    """Yield a command and all that it starts."""
    effect = effect_of(command) if command.words else Effect(read_only=True)
    yield command, effect
    for run in effect.runs:
        yield from started(run)


def shown(word: Word) -> str:
    return f"?{word.prefix}" if word.value is None else word.value


def shown_command(command: SimpleCommand) -> str:
    parts = [f"{found.name}={shown(found.value)}" for found in command.assignments]
    parts += [word.source if word.source.startswith("$") else shown(word) for word in command.words]
    is_unknown = len(parts) == 1 and command.words and command.words[0].value is None
    return "?" if is_unknown else " ".join(parts + ["..."] * command.takes_more)


def shown_words(words: tuple[Word, ...] | None) -> str | None:
    return None if words is None else " ".join(shown(word) for word in words)


@pytest.mark.parametrize("line", READ_ONLY.strip().splitlines())
def test_a_command_that_only_reads(line: str) -> None:
    for command, effect in started(command_of(line)):
        assert effect.read_only, (shown_command(command), effect.why)
        assert not effect.immune
        assert effect.changes is None


@pytest.mark.parametrize("line", ASKS)
def test_a_command_that_asks_says_why(line: str) -> None:
    effects = [effect for _, effect in started(command_of(line))]
    assert not all(effect.read_only for effect in effects)
    assert ASKS[line] in "; ".join(effect.why for effect in effects)


@pytest.mark.parametrize("line", IMMUNE.strip().splitlines())
def test_a_command_that_a_person_decides_about(line: str) -> None:
    assert any(effect.immune for _, effect in started(command_of(line)))


@pytest.mark.parametrize(
    "name", [Word("$x", None), Word("l?", "l?", is_pattern=True)], ids=["unknown", "pattern"]
)
def test_a_name_that_is_known_only_when_the_line_runs(name: Word) -> None:
    assert effect_of(SimpleCommand((name,))).immune


@pytest.mark.parametrize("line", CHANGES)
def test_a_file_command_names_what_it_changes(line: str) -> None:
    effect = effect_of(command_of(line))
    assert not effect.read_only
    assert effect.why
    expected = CHANGES[line]
    changes, _, deletes = (expected or "").partition(" - ")
    assert shown_words(effect.changes) == (None if expected is None else changes)
    if expected is not None:
        assert shown_words(effect.deletes) == deletes


@pytest.mark.parametrize("line", DELETES)
def test_what_is_deleted_is_named_also_where_the_command_is_not_understood(line: str) -> None:
    assert shown_words(effect_of(command_of(line)).deletes) == DELETES[line]


@pytest.mark.parametrize("line", RUNS)
def test_a_wrapper_names_every_command_that_it_may_run(line: str) -> None:
    runs = effect_of(command_of(line)).runs
    assert [shown_command(run) for run in runs] == RUNS[line]


@pytest.mark.parametrize("line", READS)
def test_the_files_that_a_command_reads(line: str) -> None:
    effects = [effect for _, effect in started(command_of(line))]
    assert shown_words(effects[-1].reads) == READS[line]


def test_every_module_names_its_source_and_every_question_has_a_reason() -> None:
    assert [found.__name__ for found in MODULES if "\nSource: " not in str(found.__doc__)] == []
    for name in SPECIAL:
        effect = effect_of(SimpleCommand((Word(name, name),)))
        assert effect.read_only or effect.why, name


@pytest.mark.parametrize(
    "fields",
    [{"flags": "-a -a"}, {"flags": "-a", "valued": "-a"}, {"flags": "a"}, {"asks": {"-a": "x"}}],
)
def test_a_row_that_contradicts_itself_is_refused(fields: dict[str, object]) -> None:
    with pytest.raises(ValueError, match="x: "):
        Command("x", any_option=True, **fields)  # type: ignore[arg-type]
