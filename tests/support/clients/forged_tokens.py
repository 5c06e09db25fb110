"""Tokens made by hand, because a library would refuse to make bad ones."""

from __future__ import annotations

import base64
import hashlib
import hmac
import json
from typing import Any

import pytest

from toolbus.auth.tokens import Key, KeyRing, ParticipantToken, TokenRefused, VerifiedToken

NOW = 1_700_000_000.0
SECRET = "s3cret-" + "x" * 32
KEY = Key(kid="k1", alg="HS256", iss="acme", secret=SECRET)
RING = KeyRing([KEY])
HEADER = {"alg": "HS256", "kid": "k1"}
CLAIMS: dict[str, Any] = {
    "sub": "alice",
    "room": ["lab"],
    "role": "user",
    "aud": "toolbus",
    "iss": "acme",
    "iat": NOW,
    "exp": NOW + 3600,
    "jti": "j1",
    "api": {"agents": {"call": True}},
}
ABSENT = object()
"""Instead of a claim's value: leave the claim out."""


def segment(value: object) -> str:
    """Encode bytes, or a value as JSON, as one segment of a JWT."""
    data = value if isinstance(value, bytes) else json.dumps(value).encode()
    return base64.urlsafe_b64encode(data).rstrip(b"=").decode()


def signed(header: object, claims: object, secret: bytes = SECRET.encode()) -> str:
    """Sign anything with HMAC-SHA256, whatever its header says."""
    text = f"{segment(header)}.{segment(claims)}"
    return f"{text}.{segment(hmac.new(secret, text.encode(), hashlib.sha256).digest())}"


def token_with(**changes: Any) -> str:
    """Sign good claims with some of them changed."""
    claims = {name: value for name, value in {**CLAIMS, **changes}.items() if value is not ABSENT}
    return signed(HEADER, claims)


def verify(jwt: str, ring: KeyRing = RING, now: float = NOW) -> VerifiedToken:
    """Verify a token at a fixed time."""
    return ParticipantToken.from_jwt(jwt, ring, now=now)


def verify_or_refuse(jwt: Any) -> VerifiedToken | None:
    """Verify a token; return a refusal, and let any other exception propagate."""
    try:
        return verify(jwt)
    except TokenRefused:
        return None


def reason_of(jwt: str, ring: KeyRing = RING, now: float = NOW) -> str:
    """Return why a token is refused, after a check that the message holds nothing of the token."""
    with pytest.raises(TokenRefused) as refusal:
        verify(jwt, ring, now)
    assert str(refusal.value) == "the token was refused"
    assert refusal.value.details == {}
    return refusal.value.reason
