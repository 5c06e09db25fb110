"""Tokens that expire soon, by the clock of this machine, which is the server's too."""

from __future__ import annotations

import time
from typing import Any

from support.clients.forged_tokens import HEADER, signed
from support.clients.handshakes import claims
from toolbus import ApiScope
from toolbus.auth.grants import AgentsGrant
from toolbus.auth.tokens import LEEWAY_S


def ends_in(name: str, left_s: float, *, role: str = "user", room: str = "lab") -> str:
    """Make a token with all grants that the server accepts for this many more seconds."""
    expired_at = time.time() - LEEWAY_S + left_s
    return _token(name, role, room, iat=expired_at - 3_600, exp=expired_at)


def lives_for(name: str, life_s: float, *, role: str = "user") -> str:
    """Make a token with all grants that was issued now; the leeway is added to its lifetime."""
    now = time.time()
    return _token(name, role, "lab", iat=now, exp=now + life_s)


def _token(name: str, role: str, room: str, *, iat: float, exp: float) -> str:
    every = ApiScope.full().to_claims()
    return signed(
        HEADER, claims(sub=name, role=role, room=[room], iat=iat, exp=exp, api=every, jti=f"{exp}")
    )


def calling(**agents: Any) -> ApiScope:
    return ApiScope(agents=AgentsGrant(call=True, **agents))
