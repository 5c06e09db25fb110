"""Signs, verifies and decodes a JWS, and reads and writes keys in PEM.

Independent of issuers, files and claims. Its libraries take longer to import than half of toolbus,
and most participants only present a token. Therefore this module is imported only where a key is
used, and by servers before the first connection.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from typing import Any, TypeAlias

from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec, ed25519, rsa
from jwt import DecodeError, PyJWTError, api_jws
from jwt import decode as decode_jwt
from jwt.algorithms import ECAlgorithm, OKPAlgorithm, RSAAlgorithm
from jwt.utils import base64url_decode

__all__ = [
    "PrivateKey",
    "PublicKey",
    "check_jws",
    "check_key_type",
    "load_jwk",
    "load_private",
    "load_public",
    "new_private",
    "private_pem",
    "public_jwk",
    "public_pem",
    "read_header",
    "read_issuer",
    "read_unverified",
    "sign_jws",
]

PrivateKey: TypeAlias = ed25519.Ed25519PrivateKey | ec.EllipticCurvePrivateKey | rsa.RSAPrivateKey
"""A private key of a supported algorithm."""
PublicKey: TypeAlias = ed25519.Ed25519PublicKey | ec.EllipticCurvePublicKey | rsa.RSAPublicKey
"""A public key of a supported algorithm."""

_MIN_RSA_BITS = 2048
"""Shorter keys can be factored: RFC 7518, section 3.3."""
_JWK_MEMBERS = {"RSA": ("n", "e"), "EC": ("crv", "x", "y"), "OKP": ("crv", "x")}
_JWK_READERS: dict[str, Callable[[dict[str, Any]], object]] = {
    "RSA": RSAAlgorithm.from_jwk,
    "EC": ECAlgorithm.from_jwk,
    "OKP": OKPAlgorithm.from_jwk,
}


def sign_jws(payload: bytes, key: PrivateKey, alg: str, kid: str) -> str:
    """Sign a payload with a private key; return the compact JWS."""
    return api_jws.encode(payload, key, alg, {"kid": kid})


def check_jws(jws: str, key: str | PublicKey, alg: str) -> bytes:
    """Return the payload of a compact JWS; ValueError unless it has this key and algorithm."""
    try:
        payload = api_jws.decode_complete(jws, key, [alg])["payload"]
    except (PyJWTError, TypeError, ValueError, RecursionError) as error:
        raise ValueError("the signature is invalid") from error
    return bytes(payload)


def read_header(jwt: str) -> dict[str, Any]:
    """Return the header of a token, not verified.

    Raises:
        LookupError: It is a header that no token may have.
        ValueError: It is not a header.
    """
    header, *others = jwt.split(".")
    if len(others) != 2:
        raise ValueError("not a compact JWS")
    try:
        # Without the rest, which the library would check character by character, now and again
        # with the signature.
        return api_jws.get_unverified_header(f"{header}..")
    except (DecodeError, ValueError, RecursionError) as error:
        raise ValueError("not a JOSE header") from error
    except PyJWTError as error:
        raise LookupError("not a valid header of a token") from error


def read_unverified(jwt: str) -> dict[str, Any]:
    """Return the claims of a token without verifying it; ValueError if it is not a token."""
    try:
        claims: dict[str, Any] = decode_jwt(jwt, options={"verify_signature": False})
    except (PyJWTError, ValueError, RecursionError) as error:
        raise ValueError("not a token") from error
    return claims


def read_issuer(jwt: str) -> object:
    """Return the claim `iss` of a token that has a header, not verified; None if there is none."""
    try:
        payload = base64url_decode(jwt.split(".")[1])
        return json.loads(payload).get("iss")
    except (ValueError, RecursionError, AttributeError):  # the signature of none of these holds
        return None


def new_private(alg: str) -> PrivateKey:
    """Make a new private key for EdDSA, ES256, or else RSA."""
    match alg:
        case "EdDSA":
            return ed25519.Ed25519PrivateKey.generate()
        case "ES256":
            return ec.generate_private_key(ec.SECP256R1())
    return rsa.generate_private_key(public_exponent=65537, key_size=_MIN_RSA_BITS)


def private_pem(key: PrivateKey) -> str:
    """Write a private key as PEM, without a password."""
    pem = key.private_bytes(
        serialization.Encoding.PEM,
        serialization.PrivateFormat.PKCS8,
        serialization.NoEncryption(),
    )
    return pem.decode()


def public_pem(key: PublicKey) -> str:
    """Return a public key as PEM (SubjectPublicKeyInfo)."""
    pem = key.public_bytes(
        serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo
    )
    return pem.decode()


def public_jwk(key: PublicKey) -> dict[str, Any]:
    """Write the members of a public key as a JSON Web Key has them (RFC 7518, RFC 8037)."""
    match key:
        case ed25519.Ed25519PublicKey():
            return OKPAlgorithm.to_jwk(key, as_dict=True)
        case ec.EllipticCurvePublicKey():
            return ECAlgorithm.to_jwk(key, as_dict=True)
        case _:
            return RSAAlgorithm.to_jwk(key, as_dict=True)


def load_private(pem: str) -> PrivateKey:
    """Read a private key; ValueError if it is invalid or of an unsupported type."""
    try:
        key = serialization.load_pem_private_key(pem.encode(), password=None)
    except (ValueError, TypeError, UnsupportedAlgorithm):
        raise ValueError("private must be a private key in PEM, without a password") from None
    if not isinstance(key, PrivateKey):
        raise ValueError("private is a key of a type that no supported algorithm uses")
    return key


def load_public(pem: str) -> PublicKey:
    """Read a public key; ValueError if it is invalid or of an unsupported type."""
    try:
        key = serialization.load_pem_public_key(pem.encode())
    except (ValueError, TypeError, UnsupportedAlgorithm):
        raise ValueError("public must be a public key in PEM") from None
    if not isinstance(key, PublicKey):
        raise ValueError("public is a key of a type that no supported algorithm uses")
    return key


def load_jwk(jwk: Mapping[str, Any]) -> PublicKey:
    """Read the public key of a JSON Web Key (RFC 7517); ValueError for any other kind of key."""
    kind = jwk.get("kty")
    if kind not in _JWK_MEMBERS:
        raise ValueError("no supported algorithm uses such a key")
    # Only these members: with "d" the library would make a private key of it.
    public = {"kty": kind, **{name: jwk[name] for name in _JWK_MEMBERS[kind] if name in jwk}}
    try:
        key = _JWK_READERS[kind](public)
    except (PyJWTError, ValueError, TypeError, UnsupportedAlgorithm) as error:
        raise ValueError("the key is not valid") from error
    if not isinstance(key, PublicKey):
        raise ValueError("no supported algorithm uses such a key")
    return key


def check_key_type(alg: str, public: PublicKey) -> PublicKey:
    """Return the key if it suits the algorithm and is long enough; else raise ValueError."""
    match public:
        case ed25519.Ed25519PublicKey():
            suits = alg == "EdDSA"
        case ec.EllipticCurvePublicKey():
            suits = alg == "ES256" and isinstance(public.curve, ec.SECP256R1)
        case _:
            suits = alg in ("RS256", "PS256")
            if suits and public.key_size < _MIN_RSA_BITS:
                raise ValueError(f"an {alg} key must have at least {_MIN_RSA_BITS} bits")
    if not suits:
        raise ValueError(f"this is not a key for {alg}")
    return public
