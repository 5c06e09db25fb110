"""What a signature takes: keys in PEM, and a JWS signed, checked and taken apart.

Knows nothing of issuers, files or claims. The libraries behind it take longer to load than half of
toolbus, and most who call or host only show a token: so it is itself imported where there is a
key, and by servers before anybody waits.
"""

from __future__ import annotations

from typing import Any, TypeAlias

from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec, ed25519, rsa
from jwt import DecodeError, PyJWTError, api_jws
from jwt import decode as decode_jwt
from jwt.algorithms import HMACAlgorithm

__all__ = [
    "PrivateKey",
    "PublicKey",
    "check_jws",
    "check_plain",
    "check_suits",
    "load_private",
    "load_public",
    "new_private",
    "private_pem",
    "public_pem",
    "read_header",
    "read_unchecked",
    "sign_jws",
]

PrivateKey: TypeAlias = ed25519.Ed25519PrivateKey | ec.EllipticCurvePrivateKey | rsa.RSAPrivateKey
"""A private key of one of our algorithms."""
PublicKey: TypeAlias = ed25519.Ed25519PublicKey | ec.EllipticCurvePublicKey | rsa.RSAPublicKey
"""A public key of one of our algorithms."""

_MIN_RSA_BITS = 2048


def sign_jws(payload: bytes, key: str | PrivateKey, alg: str, kid: str) -> str:
    """Return the payload as a compact JWS under a secret or a private key."""
    return api_jws.encode(payload, key, alg, {"kid": kid})


def check_jws(jws: str, key: str | PublicKey, alg: str) -> bytes:
    """Return the payload of a compact JWS; ValueError unless key and algorithm are these."""
    try:
        payload = api_jws.decode_complete(jws, key, [alg])["payload"]
    except (PyJWTError, TypeError, ValueError, RecursionError) as error:
        raise ValueError("the signature does not hold") from error
    return bytes(payload)


def read_header(jwt: str) -> dict[str, Any]:
    """Return what a token says of its signature, unchecked.

    Raises:
        LookupError: It is a header, and one that no token may have.
        ValueError: It is none.
    """
    try:
        return api_jws.get_unverified_header(jwt)
    except (DecodeError, ValueError, RecursionError) as error:
        raise ValueError("this is no header") from error
    except PyJWTError as error:
        raise LookupError("this is no header of a token") from error


def read_unchecked(jwt: str) -> dict[str, Any]:
    """Return what a token says, whether it holds or not; ValueError for what is none."""
    try:
        claims: dict[str, Any] = decode_jwt(jwt, options={"verify_signature": False})
    except (PyJWTError, ValueError, RecursionError) as error:
        raise ValueError("this is no token") from error
    return claims


def check_plain(secret: str) -> None:
    """Raise ValueError for a secret that is another kind of key, in whatever form."""
    try:
        HMACAlgorithm(HMACAlgorithm.SHA256).prepare_key(secret)
    except (PyJWTError, ValueError):
        raise ValueError("secret must be plain text, and no PEM or SSH key") from None


def new_private(alg: str) -> PrivateKey:
    """Make a new private key for EdDSA, ES256, or else RS256."""
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
    """Write a public key as PEM."""
    pem = key.public_bytes(
        serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo
    )
    return pem.decode()


def load_private(pem: str) -> PrivateKey:
    """Read a private key; ValueError for what is none of ours."""
    try:
        key = serialization.load_pem_private_key(pem.encode(), password=None)
    except (ValueError, TypeError, UnsupportedAlgorithm):
        raise ValueError("private must be a private key in PEM, without a password") from None
    if not isinstance(key, PrivateKey):
        raise ValueError("private is a key of a kind that no algorithm here uses")
    return key


def load_public(pem: str) -> PublicKey:
    """Read a public key; ValueError for what is none of ours."""
    try:
        key = serialization.load_pem_public_key(pem.encode())
    except (ValueError, TypeError, UnsupportedAlgorithm):
        raise ValueError("public must be a public key in PEM") from None
    if not isinstance(key, PublicKey):
        raise ValueError("public is a key of a kind that no algorithm here uses")
    return key


def check_suits(alg: str, public: PublicKey) -> PublicKey:
    """Return the key if it is one of this algorithm, and long enough; else raise ValueError."""
    match public:
        case ed25519.Ed25519PublicKey():
            suits = alg == "EdDSA"
        case ec.EllipticCurvePublicKey():
            suits = alg == "ES256" and isinstance(public.curve, ec.SECP256R1)
        case _:
            suits = alg == "RS256"
            if suits and public.key_size < _MIN_RSA_BITS:
                raise ValueError(f"a key of RS256 must have at least {_MIN_RSA_BITS} bits")
    if not suits:
        raise ValueError(f"this is no key of {alg}")
    return public
