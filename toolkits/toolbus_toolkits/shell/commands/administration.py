"""Commands that change a machine for everybody on it: a person decides about them.

Source: their manual pages, util-linux 2.38, shadow 4.13, systemd 252, iptables 1.8, cron 3.0.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace

from toolbus_toolkits.shell.commands.effects import Effect
from toolbus_toolkits.shell.commands.table import asking, unknown_command
from toolbus_toolkits.shell.reading import SimpleCommand

__all__ = ["SPECIAL"]


def _later(unless: str) -> Callable[[SimpleCommand], Effect]:
    """Return the function for a command that keeps lines of its input, or of a file, for later."""
    asks = asking("sets what runs later", immune=True, unless=unless)

    def effect(command: SimpleCommand) -> Effect:
        found = asks(command)
        runs = () if found.read_only else (unknown_command(command.source),)
        return replace(found, runs=runs)

    return effect


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
}
