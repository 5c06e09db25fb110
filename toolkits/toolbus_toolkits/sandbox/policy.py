"""Which sandbox a tool gets: by the flags that its author gave it, and by what an operator says.

Names and descriptions are ignored: their author could choose them to get a weaker sandbox.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal, Protocol, TypeAlias

from toolbus.auth.grants import ToolPatterns
from toolbus.permissions.assessment import Flags
from toolbus.untrusted_text import SHOWN_CHARS, one_line
from toolbus_toolkits.sandbox.config import Backend, SandboxConfig

__all__ = ["JudgedTool", "Risk", "SandboxPolicy", "ToolRiskProfile"]

Risk: TypeAlias = Literal["low", "medium", "high"]
"""`low` needs no sandbox, `medium` has one, and that of `high` is without network."""

_RISKS = ("low", "medium", "high")


class JudgedTool(Flags, Protocol):
    """A tool and its flags: a `Tool`, a `ToolManifest` or a `ToolInfo`."""

    @property
    def name(self) -> str:
        """`tool`, or `toolkit.tool`."""


@dataclass(frozen=True, slots=True)
class ToolRiskProfile:
    """What an operator says of some tools. It counts before their flags.

    Raises `ValueError` for a pattern, a risk or a time that is not valid.
    """

    tool: str
    """Which tools: `toolkit.tool` or `toolkit`, with `*`, as in grants."""
    risk: Risk | None = None
    """How much they may do; None leaves that to their flags."""
    force_backend: Backend | Literal["auto"] | None = None
    """What confines them, also at the risk `low`."""
    network: bool | None = None
    """Whether they may use the network; None leaves that to the risk."""
    max_timeout_s: float | None = None
    """Seconds that one call may take; None means unlimited."""

    def __post_init__(self) -> None:
        ToolPatterns([self.tool])  # raises
        if self.risk is not None and self.risk not in _RISKS:
            raise ValueError(f"risk must be one of {', '.join(_RISKS)}")
        if self.max_timeout_s is not None and not self.max_timeout_s > 0:
            raise ValueError("max_timeout_s must be more than 0")


class SandboxPolicy:
    """Recommends a sandbox for each tool.

    A tool that is `read_only` needs none. Any other one gets the config of the policy, and without
    network if it is `destructive` or `open_world`.

    Args:
        profiles: What the operator says; of several that cover a tool the first one counts.
        config: What a confined tool may reach.

    Raises `ValueError` for a backend of a profile that does not fit the config.
    """

    def __init__(
        self, profiles: Iterable[ToolRiskProfile] = (), *, config: SandboxConfig | None = None
    ) -> None:
        self.profiles: tuple[ToolRiskProfile, ...] = tuple(profiles)
        self.config: SandboxConfig = config or SandboxConfig()
        for profile in self.profiles:
            self._config("high", profile)  # raises

    def profile(self, tool: str) -> ToolRiskProfile | None:
        """Return the profile that counts for a tool, `toolkit.tool`; None without one.

        Raises `ValueError` for a name without a toolkit.
        """
        toolkit, dot, name = tool.partition(".")
        if not dot:
            raise ValueError(f"write toolkit.tool for {one_line(tool, SHOWN_CHARS)}")
        found = (
            profile
            for profile in self.profiles
            if ToolPatterns([profile.tool]).covers(toolkit, name)
        )
        return next(found, None)

    def recommend(self, tool: JudgedTool, toolkit: str = "") -> SandboxConfig | None:
        """Return what a tool may reach; None if it needs no sandbox.

        Args:
            tool: The tool, with its flags.
            toolkit: The name of its toolkit, where that of the tool does not have it.

        Raises `ValueError` if no toolkit is named.
        """
        name = tool.name if "." in tool.name or not toolkit else f"{toolkit}.{tool.name}"
        risk: Risk = "medium"
        if tool.destructive or tool.open_world:
            risk = "high"
        elif tool.read_only:
            risk = "low"
        return self._config(risk, self.profile(name))

    def recommend_command(self, tool: str) -> tuple[SandboxConfig | None, float | None]:
        """Return what the commands of a tool may reach, and seconds of one call.

        A tool such as `shell.run` does what its caller writes, so it is of the risk `high`, unless
        its profile says otherwise. None is as in `recommend`, and unlimited.
        """
        profile = self.profile(tool)
        return self._config("high", profile), None if profile is None else profile.max_timeout_s

    def recommend_program(self, toolkit: str) -> tuple[SandboxConfig | None, float | None]:
        """Return what the one program of a whole toolkit may reach, and seconds of one call.

        Its tools are known only once it runs, so that it is of the risk `high`, unless a profile
        that covers all of the toolkit says otherwise. None is as in `recommend`, and unlimited.

        Raises `ValueError` for a profile of some of its tools: one program cannot hold that.
        """
        for profile in self.profiles:
            patterns = ToolPatterns([profile.tool])
            if patterns.covers_toolkit(toolkit):
                return self._config("high", profile), profile.max_timeout_s
            if patterns.concerns(toolkit):
                text = f"the profile of {profile.tool} cannot be held: one program has all tools"
                raise ValueError(f"{text} of {toolkit}: write {toolkit}.*")
        return self._config("high", None), None

    def _config(self, risk: Risk, profile: ToolRiskProfile | None) -> SandboxConfig | None:
        changes: dict[str, object] = {}
        backend = None
        if profile is not None:
            risk = profile.risk or risk
            backend = profile.force_backend
            if profile.network is not None:
                changes["network"] = profile.network
        if risk == "low" and backend is None:
            return None
        if risk == "high":
            changes.setdefault("network", False)
        if backend is not None:
            changes["backend"] = backend
            if backend != "docker":
                changes["image"] = None
        fields = {name: getattr(self.config, name) for name in self.config.model_fields_set}
        return SandboxConfig.model_validate(fields | changes)
