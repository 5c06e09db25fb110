"""Resolves texts that name participants, and chooses the aliases that people see.

Pure. A bare name means the sender's own issuer, always: no token of another issuer can take it.
`alias/name` names the issuer. A server of one issuer shows bare names, and a `/` that follows no
alias of it is part of a name. Otherwise a text is split at its first `/`.
"""

from __future__ import annotations

from collections.abc import Mapping

from toolbus_server.registry.call_checks import bad_option
from toolbus_server.registry.models import NO_ALIAS, Identity, Participant, name_between

__all__ = ["Issuers"]


class Issuers:
    """The issuers of one server and their aliases, shared by all its rooms.

    Args:
        aliases: The alias of each issuer; empty for one alone that has none.
    """

    def __init__(self, aliases: Mapping[str, str] | None = None) -> None:
        self._aliases: dict[str, str] = {}
        self._by_alias: dict[str, str] = {}
        self.update(aliases or {})

    def update(self, aliases: Mapping[str, str]) -> None:
        """Replace the issuers.

        Former ones keep their alias, unless it is given to another: their participants stay until
        their tokens expire.
        """
        given = {alias for alias in aliases.values() if alias}
        former = {
            iss: alias for iss, alias in self._aliases.items() if alias and alias not in given
        }
        self._aliases = {iss: alias or former.get(iss, "") for iss, alias in aliases.items()}
        self._aliases = former | self._aliases
        self._by_alias = {alias: iss for iss, alias in self._aliases.items() if alias}

    @property
    def are_several(self) -> bool:
        """Whether names are shown with an alias."""
        return len(self._aliases) > 1

    def alias_of(self, issuer: str) -> str:
        """Return the alias to show: empty for the only issuer, `NO_ALIAS` for an unknown one."""
        if self._aliases.keys() <= {issuer}:
            return ""
        return self._aliases.get(issuer) or NO_ALIAS

    def alias_before(self, named: Identity) -> str:
        """Return the alias to show before a name: that of its issuer.

        Also that of the only issuer, if the name alone would be read as an alias and another name.
        """
        alias, slash, _ = named.name.partition("/")
        if slash and self._by_alias.get(alias) == named.issuer:
            return alias
        return self.alias_of(named.issuer)

    def identity_of(self, text: str, sender: Identity, option: str) -> Identity:
        """Return the identity that a text of a request names: a name, or `alias/name`.

        `option` is the path of the text in the request.

        Raises:
            InvalidArguments: No issuer has that alias. The message has the sender's own alias;
                others are known only from the participants that the sender may see.
        """
        alias, slash, name = text.partition("/")
        if not slash:
            return Identity(sender.issuer, text)
        issuer = self._by_alias.get(alias)
        if issuer is not None:
            return Identity(issuer, name)
        if not self.are_several:
            return Identity(sender.issuer, text)
        own = self.alias_of(sender.issuer)
        raise bad_option(
            option,
            f"must be a name of your own issuer, or alias/name: no issuer has the alias "
            f"{alias[:32]!r}, yours has {own!r}",
            alias=own,
        )

    def identity_with(self, text: str, issuer: str, option: str) -> Identity:
        """Return the identity that a text names together with an issuer, which may be unknown.

        `option` is the path of the text in the request.

        Raises:
            InvalidArguments: The alias in the text is that of another issuer.
        """
        alias, slash, name = text.partition("/")
        if not slash or alias not in self._by_alias:
            return Identity(issuer, text)
        if self._by_alias[alias] == issuer:
            return Identity(issuer, name)
        raise bad_option(
            option,
            f"{alias!r} is the alias of another issuer than the one given: omit the alias or "
            f"the issuer",
        )

    def may_act_for(self, agent: Participant, principal: Identity) -> bool:
        """Whether the grant `act_for` of a participant covers an identity.

        An entry means what it means in a request of this participant; `*` stands for all names of
        an issuer.
        """
        covers, own = agent.rights.has_act_for, agent.identity.issuer
        alias = self._aliases.get(principal.issuer)
        if alias and (covers(f"{alias}/{principal.name}") or covers(f"{alias}/*")):
            return True
        if principal.issuer != own:
            return False
        first, slash, _ = principal.name.partition("/")
        is_bare = not slash or (not self.are_several and first not in self._by_alias)
        return covers("*") or (is_bare and covers(principal.name))

    def read_share(self, entry: str, sharer: Identity) -> str:
        """Return an entry of `shared_with` in the form in which it is kept, independent of aliases.

        Raises:
            InvalidArguments: No issuer has its alias.
        """
        kind, colon, text = entry.partition(":")
        if kind != "name":
            return entry
        named = self.identity_of(text, sharer, "shared_with")
        return f"{kind}{colon}{name_between(named, sharer.issuer)}"
