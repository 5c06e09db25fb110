"""Commands that show processes and the system, and that end processes.

Source: their manual pages and `--help`; each row has its version.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from toolbus_toolkits.shell.commands.effects import Effect
from toolbus_toolkits.shell.commands.table import Arguments, Command, asking
from toolbus_toolkits.shell.reading import SimpleCommand, Word

__all__ = ["ROWS", "SPECIAL"]

_PROCPS = "procps-ng 4.0"
_UTIL_LINUX = "util-linux 2.38"

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
    return Effect(why="it changes the network")


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
    why = "it ends processes"
    # The first `-1` may be the number of a signal, a later one is every process.
    everyone = "-1" in values[1:] or values == ["-1"]
    return Effect(why=why, immune="it ends every process of this user" if everyone else "")


def _pkill(command: SimpleCommand) -> Effect:
    values = [word.value for word in command.words[1:]]
    everything = any(value in (".", ".*", "", "-1") for value in values)
    return Effect(
        why="it ends processes by their names",
        immune="it ends every process of this user" if everything else "",
    )


def _getent(arguments: Arguments) -> Effect:
    database = arguments.operands[0].value if arguments.operands else ""
    if database is None or database.startswith(("ahosts", "hosts", "net")):
        # A name may carry a secret away, as an address does.
        return Effect(why="it may ask name servers")
    return Effect(read_only=True, reads=())


def _man(arguments: Arguments) -> Effect:
    # A path is read as a page, with the programs that the page asks for.
    for word in arguments.operands:
        if word.value is None or "/" in word.value or word.is_pattern:
            return Effect(why=f"`{word.source}` may be a file that is no manual page")
    return Effect(read_only=True, reads=())


ROWS: tuple[Command, ...] = (
    *(
        Command(name=name, source=source, any_words=True)
        for name, source in (
            ("ps", f"ps(1), {_PROCPS}"),
            ("uptime", f"uptime(1), {_PROCPS}"),
            ("free", f"free(1), {_PROCPS}"),
            ("vmstat", f"vmstat(8), {_PROCPS}"),
            ("pgrep", f"pgrep(1), {_PROCPS}"),
            ("pidof", f"pidof(1), {_PROCPS}"),
            ("w", f"w(1), {_PROCPS}"),
            ("pstree", "pstree(1), psmisc 23.6"),
            ("getconf", "getconf(1), GNU libc 2.36"),
            ("which", "which(1), debianutils 5.7"),
            ("whereis", f"whereis(1), {_UTIL_LINUX}"),
            ("cal", f"cal(1), {_UTIL_LINUX}"),
            ("clear", "clear(1), ncurses 6.4"),
        )
    ),
    *(
        Command(
            name=name,
            source=f"{name}(1), man-db 2.11",
            flags="-d --debug -v --verbose -r --regex -w --wildcard -e --exact -a --and -l --long"
            " -? --help --usage -V --version",
            valued="-s --sections --section -m --systems -M --manpath -L --locale",
            asks={"-C --config-file": "reads a file of settings, and shows what it does not know"},
            operands="words",
        )
        for name in ("whatis", "apropos")
    ),
    Command(
        name="hostname",
        source="hostname(1), net-tools hostname 3.23",
        flags="-a --alias -A --all-fqdns -d --domain -f --fqdn --long -i --ip-address -I"
        " --all-ip-addresses -s --short -y --yp --nis -h --help -V --version",
        asks={"-b --boot -F --file": "sets the name of the machine"},
        operands="words",
        at_most=0,
        beyond="an operand sets the name of the machine",
    ),
    Command(
        name="locale",
        source="locale(1), GNU libc 2.36",
        flags="-a --all-locales -m --charmaps -c --category-name -k --keyword-name -v --verbose -?"
        " --help --usage -V --version",
        operands="words",
        any_option=True,
    ),
    Command(
        name="getent",
        source="getent(1), GNU libc 2.36",
        flags="-A --no-addrconfig -i --no-idn -? --help --usage -V --version",
        valued="-s --service",
        operands="words",
        effect=_getent,
    ),
    Command(
        name="top",
        source=f"top(1), {_PROCPS}",
        flags="-b --batch-mode -c --cmdline-toggle -H --threads-show -i --idle-toggle -O"
        " --list-fields -S --accum-time-toggle -s --secure-mode -1 --single-cpu-toggle -h --help"
        " -V --version",
        valued="-d --delay -E --scale-summary-mem -e --scale-task-mem -n --iterations -o"
        " --sort-override -p --pid -U --filter-any-user -u --filter-only-euser",
        optional="-w --width",
        at_most=0,
    ),
    Command(
        name="lsof",
        source="lsof(8), lsof 4.95",
        flags="-n -P -a -b -t -U -l -V -R -w -v -N -O -X",
        valued="-p -u -c -d",
        # A value of these may follow, but no word that begins with `-` or `+`.
        optional="-g -s -i -F -T",
        asks={"-D": "writes a file", "-r": "repeats for ever"},
        plus="is an option that is not known",
        ends_options=False,
    ),
    Command(
        name="ss",
        source="ss(8), iproute2 6.1",
        flags="-h --help -V --version -n --numeric -r --resolve -a --all -l --listening -o"
        " --options -e --extended -m --memory -p --processes -T --threads -i --info --tipcinfo -s"
        " --summary --tos --cgroup -b --bpf -E --events -Z --context -z --contexts -4 --ipv4 -6"
        " --ipv6 -0 --packet -t --tcp -M --mptcp -S --sctp -u --udp -d --dccp -w --raw -x --unix"
        " --tipc --vsock --xdp -H --no-header -O --oneline --inet-sockopt",
        valued="-f --family -A --query --socket",
        files="-F --filter",
        asks={
            "-K --kill": "closes connections",
            "-D --diag": "writes a file",
            "-N --net": "changes to another network",
        },
        operands="words",
    ),
    Command(
        name="netstat",
        source="netstat(8), net-tools 2.10",
        flags="-r --route -i --interfaces -g --groups -s --statistics -M --masquerade -v --verbose"
        " -W --wide -n --numeric --numeric-hosts --numeric-ports --numeric-users -N --symbolic -e"
        " --extend -p --programs -o --timers -c --continuous -l --listening -a --all -F --fib -C"
        " --cache -Z --context -t --tcp -u --udp -w --raw -x --unix -4 -6",
        operands="words",
        any_option=True,
    ),
    Command(
        name="ifconfig",
        source="ifconfig(8), net-tools 2.10",
        flags="-a -s -v",
        operands="words",
        at_most=1,
        beyond="a second operand changes the network",
    ),
    Command(
        name="ip",
        source="ip(8), iproute2 6.1",
        flags="-4 -6 -o -j -p -s -d -h -r -t -c -V -json -pretty -brief -br -oneline -details"
        " -statistics -stats -human -resolve -timestamp -color -iec -N -Numeric",
        asks={"-b -batch -force": "runs commands of a file", "-n -netns": "changes the network"},
        single_dash=True,
        operands="words",
        permutes=False,
        effect=_ip,
    ),
    Command(
        name="dmesg",
        source=f"dmesg(1), {_UTIL_LINUX}",
        flags="-H --human -J --json -k --kernel -P --nopager -p --force-prefix -r --raw --noescape"
        " -S --syslog -u --userspace -w --follow -W --follow-new -x --decode -d --show-delta -e"
        " --reltime -T --ctime -t --notime -h --help -V --version",
        valued="-f --facility -l --level -s --buffer-size --time-format --since --until",
        files="-F --file",
        optional="-L --color",
        asks={
            "-C --clear -c --read-clear": "clears the messages",
            "-D --console-off -E --console-on -n --console-level": "changes the console",
        },
        operands="words",
    ),
    Command(
        name="lscpu",
        source=f"lscpu(1), {_UTIL_LINUX}",
        flags="-a --all -b --online -B --bytes -c --offline -J --json -x --hex -y --physical"
        " --output-all -h --help -V --version",
        valued="-s --sysroot",
        optional="-C --caches -e --extended -p --parse",
        operands="words",
        any_option=True,
    ),
    Command(
        name="lsblk",
        source=f"lsblk(8), {_UTIL_LINUX}",
        flags="-A --noempty -D --discard -J --json -M --merge -O --output-all -P --pairs -S --scsi"
        " -a --all -b --bytes -d --nodeps -f --fs -i --ascii -l --list -m --perms -n --noheadings"
        " -p --paths -r --raw -s --inverse -t --topology -y --shell -z --zoned -h --help -V"
        " --version",
        valued="-E --dedup -I --include -e --exclude -o --output -w --width -x --sort --sysroot",
        optional="-T --tree",
        any_option=True,
    ),
    Command(
        name="man",
        source="man(1), man-db 2.11",
        flags="-f --whatis -k --apropos -w --where --path --location -a --all -i --ignore-case -I"
        " --match-case --regex --wildcard --names-only --no-subpages -7 --ascii -? --help --usage"
        " -V --version",
        valued="-s -S --sections",
        asks={
            "-P --pager -p --preprocessor -H --html -X --gxditview": "runs a program",
            "-C --config-file": "may set what it runs",
            "-l --local-file": "reads a file that is no manual page",
        },
        operands="words",
        effect=_man,
    ),
)

SPECIAL: Mapping[str, Callable[[SimpleCommand], Effect]] = {
    "kill": _kill,
    "pkill": _pkill,
    "killall": _pkill,
    "killall5": asking("ends every process", immune=True),
    "renice": asking("changes processes"),
    "sysctl": asking("may change the system"),
}
