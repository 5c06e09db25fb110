"""Commands that show services, logs and hardware, and those that change a machine for everybody.

Their pagers run in a terminal only, and a command of the shell has none. A person decides about
what changes the machine.

Source: the manual pages of systemd 252, util-linux 2.38, pciutils 3.9, usbutils 014, kmod 30,
shadow 4.13, iptables 1.8 and cron 3.0; `nvidia-smi --help` 550.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace

from toolbus_toolkits.shell.commands.table import (
    Arguments,
    Command,
    Effect,
    asking,
    shows,
    takes_words,
    unknown_command,
    with_subcommands,
)
from toolbus_toolkits.shell.reading import SimpleCommand

__all__ = ["ROWS", "SPECIAL"]


def _later(unless: str) -> Callable[[SimpleCommand], Effect]:
    """Return the function for a command that keeps lines of its input, or of a file, for later."""
    asks = asking("sets what runs later", immune=True, unless=unless)

    def effect(command: SimpleCommand) -> Effect:
        found = asks(command)
        runs = () if found.read_only else (unknown_command(command.source),)
        return replace(found, runs=runs)

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
