"""Which sandbox a policy recommends for a tool."""

from __future__ import annotations

from typing import Any

import pytest

from toolbus import Toolkit, tool
from toolbus_toolkits.sandbox import SandboxConfig, SandboxPolicy, ToolRiskProfile

BASE = SandboxConfig(read=("/usr/share",), network=True)


def manifest(**flags: bool) -> Any:
    """The manifest of a tool whose words say the opposite of its flags."""

    @tool(description="Deletes all files and calls the internet.", **flags)  # type: ignore[call-overload,untyped-decorator]
    def delete_everything() -> None: ...

    return Toolkit("kit", [delete_everything]).manifest().tools[0]


@pytest.mark.parametrize(
    ("flags", "config"),
    [
        ({"read_only": True}, None),
        ({}, BASE),
        ({"destructive": True}, BASE.model_copy(update={"network": False})),
        ({"open_world": True}, BASE.model_copy(update={"network": False})),
        ({"read_only": True, "open_world": True}, BASE.model_copy(update={"network": False})),
    ],
)
def test_the_flags_of_a_tool_decide_and_never_its_words(
    flags: dict[str, bool], config: SandboxConfig | None
) -> None:
    assert SandboxPolicy(config=BASE).recommend(manifest(**flags), "kit") == config


def test_without_a_config_a_tool_is_confined_by_auto_without_network() -> None:
    assert SandboxPolicy().recommend(manifest(), "kit") == SandboxConfig()


def test_the_first_profile_that_covers_a_tool_counts_before_its_flags() -> None:
    policy = SandboxPolicy(
        [
            ToolRiskProfile("kit.delete_*", "low", max_timeout_s=3),
            ToolRiskProfile("kit", "high", force_backend="landlock", network=True),
            ToolRiskProfile("*", force_backend="subprocess"),
        ],
        config=BASE,
    )
    assert policy.recommend(manifest(destructive=True), "kit") is None
    assert policy.profile("kit.delete_everything") == policy.profiles[0]
    assert policy.recommend_program("other") == (
        BASE.model_copy(update={"backend": "subprocess", "network": False}),
        None,
    )
    kit = SandboxPolicy(policy.profiles[1:], config=BASE)
    assert kit.recommend(manifest(), "kit") == BASE.model_copy(update={"backend": "landlock"})
    low = SandboxPolicy([ToolRiskProfile("*", "low", force_backend="bubblewrap")])
    assert low.recommend(manifest(), "kit") == SandboxConfig(backend="bubblewrap")


def test_a_profile_of_one_tool_cannot_be_held_by_the_program_of_all() -> None:
    policy = SandboxPolicy([ToolRiskProfile("kit.one", "low")])
    with pytest.raises(ValueError, match=r"one program has all tools of kit: write kit\.\*"):
        policy.recommend_program("kit")
    assert policy.recommend_program("other") == (SandboxConfig(), None)
    whole = SandboxPolicy([ToolRiskProfile("kit.*", "low", max_timeout_s=2)])
    assert whole.recommend_program("kit") == (None, 2)


@pytest.mark.parametrize(
    ("profile", "words"),
    [
        ({"tool": "a b"}, "a b"),
        ({"tool": ""}, "pattern"),
        ({"tool": "*", "risk": "critical"}, "risk must be one of low, medium, high"),
        ({"tool": "*", "max_timeout_s": 0}, "max_timeout_s must be more than 0"),
        ({"tool": "*", "force_backend": "docker"}, "docker needs an image"),
        ({"tool": "*", "force_backend": "microsandbox"}, "microsandbox is not supported"),
        ({"tool": "*", "force_backend": "chroot"}, "Input should be"),
    ],
)
def test_a_profile_that_cannot_be_held_is_refused(profile: dict[str, Any], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        SandboxPolicy([ToolRiskProfile(**profile)])


def test_a_tool_without_its_toolkit_is_refused() -> None:
    with pytest.raises(ValueError, match=r"write toolkit\.tool for delete_everything"):
        SandboxPolicy().recommend(manifest())


def test_an_image_stays_with_docker() -> None:
    config = SandboxConfig(backend="docker", image="alpine")
    policy = SandboxPolicy([ToolRiskProfile("kit", force_backend="bubblewrap")], config=config)
    assert policy.recommend(manifest(), "kit") == SandboxConfig(backend="bubblewrap")
    assert policy.recommend(manifest(), "other") == config
