"""What permissions decide about command lines, by what the shell says about them."""

from __future__ import annotations

from collections.abc import Iterable
from types import SimpleNamespace
from typing import cast

from support.shell.folder import ProjectFolder
from toolbus import Assessment, Permissions, Rule
from toolbus.permissions.decision import JudgedCall
from toolbus.permissions.rule import RuleBehavior
from toolbus_toolkits.shell.assessing import assess_line
from toolbus_toolkits.shell.config import shell_environment
from toolbus_toolkits.workspace import Roots, SensitivePaths

__all__ = ["TOOL", "Judge"]

TOOL = "shell.run"


def _call(line: str) -> JudgedCall:
    """Return a call of the agent's own toolkit, whose word counts."""
    tool = SimpleNamespace(name=TOOL, own_name=TOOL, owner="", issuer="", alias="")
    agent = SimpleNamespace(name="agent", issuer="", alias="")
    context = SimpleNamespace(caller=agent, on_behalf_of=None, forwarded_for=(), is_hosted=False)
    call = SimpleNamespace(tool=tool, arguments={"command": line}, context=context)
    return cast(JudgedCall, call)


class Judge:
    """Assesses lines that start in the working directory of a project, its only root.

    Args:
        project: The project.
    """

    def __init__(self, project: ProjectFolder) -> None:
        self.project = project
        self.environment = shell_environment({"HOME": str(project.home)})
        """The variables that its lines start with."""
        self._roots = Roots([project.work])
        self._sensitive = SensitivePaths()

    def assess(self, line: str, patterns: Iterable[str] = ()) -> Assessment:
        """Return what a line would do."""
        return assess_line(
            line,
            directory=str(self.project.work),
            environment=self.environment,
            roots=self._roots,
            sensitive=self._sensitive,
            patterns=tuple(patterns),
        )

    def decide(self, line: str, permissions: Permissions) -> RuleBehavior:
        """Return what permissions decide about a line."""
        call = _call(line)
        assessment = self.assess(line, permissions.patterns(call))
        return permissions.decide(call, assessment).behavior

    def decide_by_rules(self, line: str, *rules: str) -> RuleBehavior:
        """Return what rules decide in the mode `default`: texts such as `allow git status:*`."""
        made = []
        for rule in rules:
            behavior, _, pattern = rule.partition(" ")
            made.append(
                Rule(behavior=cast(RuleBehavior, behavior), tool=TOOL, match=pattern or None)
            )
        return self.decide(line, Permissions("default", made))
