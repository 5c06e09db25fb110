"""Commands that show processes, services, logs and hardware, or change them for everybody.

Their pagers run in a terminal only, and a command of the shell has none. A person decides about
what changes the machine.

Source: the manual pages and `--help` of procps-ng 4.0, util-linux 2.38, psmisc 23.6, GNU libc 2.36,
debianutils 5.7, ncurses 6.4, man-db 2.11, hostname 3.23 and 2.10 of net-tools, lsof 4.95, iproute2
6.1, systemd 252, pciutils 3.9, usbutils 014, kmod 30, shadow 4.13, iptables 1.8, cron 3.0 and
nvidia-smi 550.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

from toolbus_toolkits.shell.commands.table import (
    Arguments,
    Command,
    Effect,
    asking,
    reads_files,
    shows,
    starts,
    takes_words,
    unknown_command,
    with_subcommands,
)
from toolbus_toolkits.shell.reading import SimpleCommand, Word

__all__ = ["ROWS", "SPECIAL"]

_IP_OBJECTS = frozenset(
    "address addr a link l route r ro rule ru neighbour neighbor neigh n maddress maddr mroute"
    " tunnel addrlabel ntable tcp_metrics".split()
)
_IP_SHOWS = frozenset("show list ls lst get".split())


def _ip(arguments: Arguments) -> Effect:
    values = [word.value for word in arguments.operands[:2]]
    is_shown = len(values) < 2 or values[1] in _IP_SHOWS
    if not values or (values[0] in _IP_OBJECTS and is_shown and arguments.count_is_known()):
        return Effect(read_only=True, reads=())
    return Effect(why="it changes the network", runs_words=values[0] not in _IP_OBJECTS)


def _are_processes(words: Sequence[Word]) -> bool:
    # A later option names another signal: `kill -0 -s KILL 1`. One word alone cannot.
    if len(words) == 1 and words[0].value is None and not words[0].is_split:
        return True
    shown = ("$!", "$$", '"$!"', '"$$"')
    return all((word.value or "").isdecimal() or word.source in shown for word in words)


def _kill(command: SimpleCommand) -> Effect:
    words = command.words[1:]
    values = [word.value for word in words]
    if values and values[0] in ("-l", "-L", "--list", "--table"):
        return Effect(read_only=True, reads=())
    if values and values[0] == "-0" and not command.takes_more and _are_processes(words[1:]):
        return Effect(read_only=True, reads=())
    # The first `-1` may be the number of a signal, a later one is every process.
    return _ends("it ends processes", everything="-1" in values[1:] or values == ["-1"])


def _pkill(command: SimpleCommand) -> Effect:
    values = {word.value for word in command.words[1:]}
    return _ends(
        "it ends processes by their names", everything=bool(values & {".", ".*", "", "-1"})
    )


def _ends(why: str, *, everything: bool) -> Effect:
    if everything:
        return Effect(why=why, immune="it ends every process of this user")
    return Effect(why=why)


def _getent(arguments: Arguments) -> Effect:
    for word in arguments.operands[:1]:
        # A name may carry a secret away, as an address does.
        if word.value is None or word.value.startswith(("ahosts", "hosts", "net")):
            return Effect(why="it may ask name servers")
    return Effect(read_only=True, reads=())


def _man(arguments: Arguments) -> Effect:
    # A path is read as a page, with the programs that the page asks for.
    for word in arguments.operands:
        if word.value is None or "/" in word.value or word.is_pattern:
            return Effect(why=f"`{word.source}` may be a file that is no manual page")
    if not arguments.has("-f --whatis -k --apropos -w --where --path --location -? --help -V"):
        return Effect(why="it formats a page, and may store the result in its cache")
    return Effect(read_only=True, reads=())


_OF_SHELL = ("$$", "$!", "$PPID", '"$$"', '"$!"', '"$PPID"')
"""The number of a process, whatever the line does before."""
_COLUMN = (
    r"(?:%?cpu|%?mem|pcpu|pmem|args|cmd|command|comm|ucmd|pid|ppid|pgid|pgrp|sid|sess|tid|lwp|nlwp"
    r"|thcount|uid|user|euser|ruser|gid|group|s|stat|state|tt|tty|tname|time|etimes?|lstart|start"
    r"|start_time|stime|rss|rssize|vsz|vsize|sz|nice|ni|pri|psr|cgroup|unit|wchan)"
)
_COLUMNS = rf"{_COLUMN}(?:=[^,\s]*)?(?:,{_COLUMN}(?:=[^,\s]*)?)*"
_SORT = rf"--sort=[+-]?{_COLUMN}(?:,[+-]?{_COLUMN})*"
# With the letter `e` ps of BSD shows the variables of processes, with or without a `-` before it.
# ps of procps reads its words as UNIX does, where `-e` is every process, and once more as BSD does
# if they fail: `ps -ef -o cmd -p 1`. So an `e` may stand in words that cannot fail, and in columns
# behind words of which none takes a value in either reading. (parser.c of procps-ng 4.0)
_PS_OF_ALL = re.compile(
    rf"(?: -w+)*(?: -[AadfFjlLHwy]*e[AadfFjlLHwy]*| -[Aaw]*e[Aaw]*(?:o| -o) ?{_COLUMNS}"
    rf"| -C [A-Za-z0-9_.-]{{1,15}}(?: -[fF]| -o ?{_COLUMNS})?)"
    rf"(?: -w+| --no-headers?| --forest| {_SORT})*"
)
_PS_LONG = (
    r" --(?:no-headers?|forest|deselect|help|version|(?:sort|format|pid|ppid|user)=\S*"
    r"|p?pid [0-9]+)"
)
_PS_WORDS = re.compile(
    rf"(?: -?[aAdfFjlLHTwyx]+| [aucfghjlmnrsvwxHLSTX]+| -?[aAdfFjlLHTwy]*p [0-9]+(?:,[0-9]+)*"
    rf"| -u (?:root|[0-9]+)|{_PS_LONG})*(?: -[aAdfFjlLHTwyx]*o ?{_COLUMNS}| [auxwf]*o ?{_COLUMNS})?"
    r"(?: -[aAcCdfFgGhHjklLmMnNoOpPqrsStTuUvVwxXyZ]+[0-9,]*| [A-DF-Za-df-z0-9_.,:%=+/]+"
    rf"|{_PS_LONG})*"
)


def _ps(command: SimpleCommand) -> Effect:
    words = command.words[1:]
    texts = ["1" if word.source in _OF_SHELL else word.value or " " for word in words]
    line = "".join(f" {text}" for text in texts)
    is_certain = not any(
        word.is_pattern or re.search(r"\s", text) for word, text in zip(words, texts, strict=True)
    )
    if is_certain and not command.takes_more:
        if _PS_OF_ALL.fullmatch(line) or _PS_WORDS.fullmatch(line):
            return Effect(read_only=True, reads=())
    return Effect(why="its options may show the variables of other processes")


def _later(unless: str) -> Callable[[SimpleCommand], Effect]:
    """Return the function for a command that keeps lines of its input, or of a file, for later."""
    asks = asking("sets what runs later", immune=True, unless=unless)

    def effect(command: SimpleCommand) -> Effect:
        found = asks(command)
        if found.read_only:
            return found
        return replace(found, runs=(unknown_command(command.source),))

    return effect


_SYSTEMCTL = takes_words(
    "systemctl",
    "--user --system -a --all -l --full --no-pager --plain --no-legend -q --quiet -r --recursive"
    " --reverse --after --before --failed --value --show-types --no-ask-password -h --help"
    " --version",
    valued="-t --type --state -p --property -P -n --lines -o --output --timestamp",
    optional="--legend",
    asks={
        "-H --host -M --machine": "asks another machine",
        "--root --image": "names another system",
    },
)


def _show(arguments: Arguments) -> Effect:
    properties = arguments.values("-p --property -P")
    if not properties or any("env" in (word.value or "env").lower() for word in properties):
        return Effect(why="it may show the variables of services")
    return Effect(read_only=True, reads=())


def _journal(arguments: Arguments) -> Effect:
    # The entry of a process that crashed has its variables, in the field COREDUMP_ENVIRON.
    fields = arguments.values("--output-fields -F --field")
    forms = arguments.values("-o --output")
    shows_all = not arguments.has("--output-fields") and not all(
        (word.value or "").startswith(("short", "cat", "with-unit")) for word in forms
    )
    if shows_all or any("ENVIRON" in (word.value or "ENVIRON").upper() for word in fields):
        return Effect(why="it may show the variables of a process that crashed")
    return Effect(read_only=True, reads=arguments.paths())


_SYSTEMCTL_ROWS = (
    replace(_SYSTEMCTL, at_most=0),
    replace(_SYSTEMCTL, name="systemctl show", effect=_show),
    *(
        replace(_SYSTEMCTL, name=f"systemctl {name}")
        for name in (
            "status cat is-active is-enabled is-failed is-system-running get-default list-units"
            " list-unit-files list-timers list-sockets list-paths list-dependencies list-jobs"
            " list-machines list-automounts"
        ).split()
    ),
)
_SYSTEMCTL_WHYS = {
    "systemctl": "it changes services",
    "systemctl show-environment": "it shows variables, which may be secrets",
    "systemctl start, systemctl stop, systemctl restart, systemctl reload": (
        "it starts or ends services"
    ),
    "systemctl enable, systemctl disable, systemctl mask": (
        "it changes which services start with the machine"
    ),
    "systemctl poweroff, systemctl reboot, systemctl halt, systemctl suspend": (
        "it ends or restarts the machine"
    ),
}


def _control(name: str, shown: str) -> tuple[Command, ...]:
    row = takes_words(
        name,
        "--no-pager -l --full -a --all --no-legend --value --static --transient --pretty -h --help"
        " --version",
        valued="-p --property -n --lines -o --output",
        asks={"-H --host -M --machine": "asks another machine"},
    )
    return (
        replace(row, at_most=0),
        *(replace(row, name=f"{name} {word}") for word in shown.split()),
    )


_CONTROLS = {
    "loginctl": _control(
        "loginctl",
        "list-sessions session-status show-session list-users user-status show-user list-seats"
        " seat-status show-seat",
    ),
    "hostnamectl": _control("hostnamectl", "status"),
    "timedatectl": _control("timedatectl", "status show list-timezones timesync-status"),
    "localectl": _control("localectl", "status list-locales list-keymaps"),
}

ROWS: tuple[Command, ...] = (
    shows("uptime", "-p --pretty -s --since -h --help -V --version"),
    shows(
        "free",
        "-b --bytes --kilo --mega --giga --tera --peta -k --kibi -m --mebi -g --gibi --tebi"
        " --pebi -h --human --si -l --lohi -L --line -t --total -v --committed -w --wide --help"
        " -V --version",
        valued="-s --seconds -c --count",
    ),
    shows(
        "vmstat",
        "-a --active -f --forks -m --slabs -n --one-header -s --stats -d --disk -D --disk-sum -t"
        " --timestamp -w --wide -y --no-first -h --help -V --version",
        valued="-p --partition -S --unit",
    ),
    shows(
        "pidof",
        "-s --single-shot -c --check-root -q -w --with-workers -x -h --help -V --version",
        valued="-o --omit-pid -S --separator",
    ),
    shows(
        "w",
        "-h --no-header -u --no-current -s --short -f --from -o --old-style -i --ip-addr -p"
        " --pids --help -V --version",
    ),
    shows(
        "pstree",
        "-a --arguments -A --ascii -c --compact-not -g --show-pgids -G --vt100 -h --highlight-all"
        " -l --long -n --numeric-sort -p --show-pids -s --show-parents -S --ns-changes -t"
        " --thread-names -T --hide-threads -u --uid-changes -U --unicode -V --version -Z"
        " --security-context",
        valued="-C --color -H --highlight-pid -N --ns-sort",
    ),
    shows("getconf", "-a", valued="-v"),
    shows("which", "-a -s"),
    shows("whereis", "-b -m -s -u -l -g -f -h --help -V --version", valued="-B -M -S"),
    shows(
        "cal",
        "-1 --one -3 --three -s --sunday -m --monday -j --julian -y --year -Y --twelve -w --week"
        " -v --vertical -h --help -V --version",
        valued="-n --months -c --columns --reform",
    ),
    shows("clear", "-x -V", valued="-T"),
    takes_words(
        "pgrep",
        "-c --count -l --list-name -a --list-full -v --inverse -w --lightweight -f --full -i"
        " --ignore-case -x --exact -n --newest -o --oldest -L --logpidfile -A --ignore-ancestors -h"
        " --help -V --version",
        valued="-d --delimiter -g --pgroup -G --group -O --older -P --parent -s --session -t"
        " --terminal -u --euid -U --uid -r --runstates --cgroup --ns --nslist",
        files="-F --pidfile",
        asks={"--env": "shows which processes have a variable"},
    ),
    takes_words(
        "whatis, apropos",
        "-d --debug -v --verbose -r --regex -w --wildcard -e --exact -a --and -l --long -?"
        " --help --usage -V --version",
        valued="-s --sections --section -m --systems -M --manpath -L --locale",
        asks={"-C --config-file": "reads a file of settings, and shows what it does not know"},
    ),
    takes_words(
        "hostname",
        "-a --alias -A --all-fqdns -d --domain -f --fqdn --long -i --ip-address -I"
        " --all-ip-addresses -s --short -y --yp --nis -h --help -V --version",
        asks={"-b --boot -F --file": "sets the name of the machine"},
        at_most=0,
        beyond="an operand sets the name of the machine",
    ),
    shows(
        "locale",
        "-a --all-locales -m --charmaps -c --category-name -k --keyword-name -v --verbose -? --help"
        " --usage -V --version",
    ),
    takes_words(
        "getent",
        "-A --no-addrconfig -i --no-idn -? --help --usage -V --version",
        valued="-s --service",
        effect=_getent,
    ),
    Command(
        "lsof",
        "-n -P -a -b -t -U -l -V -R -w -v -N -O -X",
        valued="-p -u -c -d",
        # A value of these may follow, but no word that begins with `-` or `+`.
        optional="-g -s -i -F -T",
        asks={"-D": "writes a file", "-r": "repeats for ever"},
        plus="is an option that is not known",
        ends_options=False,
    ),
    takes_words(
        "ss",
        "-h --help -V --version -n --numeric -r --resolve -a --all -l --listening -o --options -e"
        " --extended -m --memory -p --processes -T --threads -i --info --tipcinfo -s --summary"
        " --tos --cgroup -b --bpf -E --events -Z --context -z --contexts -4 --ipv4 -6 --ipv6 -0"
        " --packet -t --tcp -M --mptcp -S --sctp -u --udp -d --dccp -w --raw -x --unix --tipc"
        " --vsock --xdp -H --no-header -O --oneline --inet-sockopt",
        valued="-f --family -A --query --socket",
        files="-F --filter",
        asks={
            "-K --kill": "closes connections",
            "-D --diag": "writes a file",
            "-N --net": "changes to another network",
        },
    ),
    shows(
        "netstat",
        "-r --route -i --interfaces -g --groups -s --statistics -M --masquerade -v --verbose -W"
        " --wide -n --numeric --numeric-hosts --numeric-ports --numeric-users -N --symbolic -e"
        " --extend -p --programs -o --timers -c --continuous -l --listening -a --all -F --fib -C"
        " --cache -Z --context -t --tcp -u --udp -w --raw -x --unix -4 -6",
    ),
    takes_words("ifconfig", "-a -s -v", at_most=1, beyond="a second operand changes the network"),
    starts(
        "ip",
        "-4 -6 -o -j -p -s -d -h -r -t -c -V -json -pretty -brief -br -oneline -details -statistics"
        " -stats -human -resolve -timestamp -color -iec -N -Numeric",
        asks={"-b -batch -force": "runs commands of a file", "-n -netns": "changes the network"},
        single_dash=True,
        effect=_ip,
    ),
    takes_words(
        "dmesg",
        "-H --human -J --json -k --kernel -P --nopager -p --force-prefix -r --raw --noescape -S"
        " --syslog -u --userspace -w --follow -W --follow-new -x --decode -d --show-delta -e"
        " --reltime -T --ctime -t --notime -h --help -V --version",
        valued="-f --facility -l --level -s --buffer-size --time-format --since --until",
        files="-F --file",
        optional="-L --color",
        asks={
            "-C --clear -c --read-clear": "clears the messages",
            "-D --console-off -E --console-on -n --console-level": "changes the console",
        },
    ),
    shows(
        "lscpu",
        "-a --all -b --online -B --bytes -c --offline -J --json -x --hex -y --physical --output-all"
        " -h --help -V --version",
        valued="-s --sysroot",
        optional="-C --caches -e --extended -p --parse",
    ),
    reads_files(
        "lsblk",
        "-A --noempty -D --discard -J --json -M --merge -O --output-all -P --pairs -S --scsi -a"
        " --all -b --bytes -d --nodeps -f --fs -i --ascii -l --list -m --perms -n --noheadings -p"
        " --paths -r --raw -s --inverse -t --topology -y --shell -z --zoned -h --help -V --version",
        valued="-E --dedup -I --include -e --exclude -o --output -w --width -x --sort --sysroot",
        optional="-T --tree",
    ),
    takes_words(
        "man",
        "-f --whatis -k --apropos -w --where --path --location -a --all -i --ignore-case -I"
        " --match-case --regex --wildcard --names-only --no-subpages -7 --ascii -? --help --usage"
        " -V --version",
        valued="-s -S --sections",
        asks={
            "-P --pager -p --preprocessor -H --html -X --gxditview": "runs a program",
            "-C --config-file": "names settings, and what they run",
            "-l --local-file": "names a file that is no manual page",
        },
        effect=_man,
    ),
    *_SYSTEMCTL_ROWS,
    *(row for rows in _CONTROLS.values() for row in rows),
    Command(
        "journalctl",
        "-a --all -f --follow -e --pager-end --no-tail -r --reverse -k --dmesg -l --full --no-full"
        " -q --quiet -x --catalog --utc --no-hostname --no-pager --user --system -m --merge"
        " --list-boots --disk-usage --header --list-catalog -N --fields -h --help --version",
        valued="-u --unit --user-unit -S --since -U --until -p --priority -o --output"
        " --output-fields -g --grep -t --identifier -F --field -c --cursor --after-cursor"
        " --facility --namespace",
        files="-D --directory --file",
        optional="-n --lines -b --boot --case-sensitive",
        asks={
            "--vacuum-size --vacuum-files --vacuum-time": "deletes logs",
            "--rotate --flush --sync --relinquish-var --smart-relinquish-var": "changes logs",
            "--setup-keys --update-catalog --cursor-file": "writes files",
            "-M --machine --root --image": "names another system",
        },
        effect=_journal,
    ),
    takes_words(
        "findmnt",
        "-A --all -a --ascii -b --bytes -D --df -e --evaluate -f --first-only -i --invert -J --json"
        " -k --kernel -l --list -n --noheadings -P --pairs -r --raw -R --submounts -u --notruncate"
        " -U --uniq -v --nofsroot -x --verify --tree --real --pseudo -h --help -V --version -m"
        " --mtab -s --fstab -c --canonicalize -C --nocanonicalize",
        valued="-d --direction -M --mountpoint -o --output -O --options -S --source -t --types -T"
        " --target",
        files="-F --tab-file",
    ),
    takes_words(
        "lspci",
        "-m -t -v -k -x -b -D -P -n",
        valued="-s -d -i",
        asks={"-q -Q": "asks a server", "-A -O -H -F -G -M": "is not known to only read"},
    ),
    shows("lsusb", "-v --verbose -t --tree -V --version -h --help", valued="-s -d"),
    shows("lsmod"),
    takes_words(
        "nvidia-smi",
        "-L --list-gpus -q --query -x --xml-format -h --help --version",
        valued="-i --id -d --display",
        optional="--query-gpu --query-compute-apps --format",
        asks={"-f --filename": "writes a file"},
        single_dash=True,
        at_most=0,
    ),
)

SPECIAL: Mapping[str, Callable[[SimpleCommand], Effect]] = {
    "ps": _ps,
    "top": asking("makes a folder for its settings in the home"),
    "kill": _kill,
    "pkill": _pkill,
    "killall": _pkill,
    "killall5": asking("ends every process", immune=True),
    "renice": asking("changes processes"),
    "sysctl": asking("may change the system"),
    "mkfs, mke2fs, mkfs.ext2, mkfs.ext3, mkfs.ext4, mkfs.xfs, mkfs.btrfs, mkfs.vfat,"
    " mkfs.fat, mkfs.ntfs, mkfs.f2fs, mkfs.exfat, mkfs.minix, mkfs.msdos, mkfs.bfs,"
    " mkfs.cramfs, mkdosfs, mkswap, wipefs, parted, sfdisk, cfdisk, gdisk, sgdisk, cgdisk,"
    " blkdiscard, hdparm, resize2fs, cryptsetup, pvcreate, pvremove, vgremove, lvremove,"
    " mdadm, fsck, tune2fs, badblocks, fstrim, swapoff, swapon": asking(
        "changes a disk", immune=True
    ),
    "fdisk": asking("changes a disk", immune=True, unless="-l --list"),
    "shutdown, reboot, halt, poweroff, init, telinit": asking(
        "ends or restarts the machine", immune=True
    ),
    "userdel, useradd, usermod, groupadd, groupdel, groupmod, adduser, deluser, addgroup,"
    " delgroup, passwd, chpasswd, gpasswd, chsh, chfn, visudo, vipw, vigr, newusers, chage": asking(
        "changes the users of the machine", immune=True
    ),
    "iptables, ip6tables": asking(
        "changes the firewall", immune=True, unless="-L -S --list --list-rules"
    ),
    "nft, ufw, firewall-cmd, iptables-restore, ip6tables-restore": asking(
        "changes the firewall", immune=True
    ),
    "crontab": _later("-l"),
    "at": _later("-l -V"),
    "batch": _later(""),
    "atrm": asking("changes what runs later", immune=True),
    "insmod, modprobe, rmmod, kexec": asking("changes the kernel", immune=True),
    "mount, umount": asking("changes what is mounted"),
    "setcap, setfacl, chattr": asking("changes what files may do, or who may use them"),
    "systemctl": with_subcommands(
        replace(_SYSTEMCTL, permutes=False), _SYSTEMCTL_ROWS, _SYSTEMCTL_WHYS
    ),
    **{
        name: with_subcommands(
            replace(rows[0], permutes=False, at_most=None),
            rows,
            {name: "it changes settings of the machine"},
        )
        for name, rows in _CONTROLS.items()
    },
}
