"""Valid URLs of a Redis, and the messages for invalid ones."""

from __future__ import annotations

import pytest
from redis.asyncio.sentinel import SentinelConnectionPool

from toolbus_server.cluster.redis.url import pool_of


def sentinels_of(pool: SentinelConnectionPool) -> list[tuple[str, int]]:
    arguments = [each.connection_pool.connection_kwargs for each in pool.sentinel_manager.sentinels]
    return [(each["host"], each["port"]) for each in arguments]


def test_plain_url_has_address_user_password_and_database() -> None:
    options = pool_of("redis://ann:p%40ss%2Fword@10.0.0.1:7000/3").connection_kwargs
    named = {each: options[each] for each in ("host", "port", "username", "password", "db")}
    assert named == {
        "host": "10.0.0.1",
        "port": 7000,
        "username": "ann",
        "password": "p@ss/word",
        "db": 3,
    }


def test_sentinels_and_redis_have_separate_passwords() -> None:
    pool = pool_of(
        "redis+sentinel://ann:p%40%2F%3F@a,b:1,[::1]:2,[::2]/ma%2Fin/2"
        "?sentinel_username=eve&sentinel_password=s%26%2F&socket_connect_timeout=3"
    )
    assert isinstance(pool, SentinelConnectionPool)
    assert pool.service_name == "ma/in"
    assert sentinels_of(pool) == [("a", 26379), ("b", 1), ("::1", 2), ("::2", 26379)]
    options = pool.connection_kwargs
    assert (options["username"], options["password"], options["db"]) == ("ann", "p@/?", 2)
    assert options["socket_connect_timeout"] == 3.0
    own = pool.sentinel_manager.sentinel_kwargs
    assert (own["username"], own["password"]) == ("eve", "s&/")


def test_connections_need_no_right_to_client_setinfo() -> None:
    pool = pool_of("redis+sentinel://a/main")
    assert isinstance(pool, SentinelConnectionPool)
    for options in (pool.connection_kwargs, pool.sentinel_manager.sentinel_kwargs):
        assert options["driver_info"] is None


def test_tls_is_used_with_sentinels_too() -> None:
    pool = pool_of("rediss+sentinel://a/main?ssl_ca_certs=ca.pem")
    assert isinstance(pool, SentinelConnectionPool)
    assert pool.sentinel_manager.sentinel_kwargs["ssl"] is True
    assert pool.sentinel_manager.sentinel_kwargs["ssl_ca_certs"] == "ca.pem"
    assert pool.connection_kwargs["ssl_ca_certs"] == "ca.pem"
    assert "SSL" in pool.connection_class.__name__


@pytest.mark.parametrize("url", ["redis://a", "redis+sentinel://a/main"])
def test_url_cannot_change_what_the_client_relies_on(url: str) -> None:
    query = "protocol=3&decode_responses=true&encoding=utf-16"
    options = pool_of(f"{url}?{query}").connection_kwargs
    assert (options["protocol"], options["decode_responses"]) == (2, False)
    assert options["encoding"] == "utf-8"


@pytest.mark.parametrize(
    "url",
    [
        "",
        "secret",
        "http://secret",
        "redis://ann:secret/x@a:1",
        "redis://a:secret",
        "redis://a?socket_timeout=secret",
        "redis://a?secret=1",
        "redis://a?retry=3",
        "redis://a?credential_provider=secret",
        "redis://a?redis_connect_func=secret",
        "redis://a/secret",
        "redis://a/1/2",
        "redis+sentinel://ann:secret/x@a:1/main",
        "redis+sentinel://a:secret/main",
        "redis+sentinel://a",
        "redis+sentinel:///main",
        "redis+sentinel://a/main/secret",
        "redis+sentinel://a/main?secret=1",
        "redis+sentinel://a/main?sentinel_secret=1",
        "redis+sentinel://a/main?retry=3",
        "rediss://a?ssl_cert_reqs=secret",
    ],
)
def test_invalid_url_is_refused_and_not_repeated(url: str) -> None:
    with pytest.raises(ValueError, match=r"Redis|Sentinels|redis-py") as raised:
        pool_of(url)
    assert "secret" not in str(raised.value)
    assert raised.value.__cause__ is None
    assert raised.value.__suppress_context__ or raised.value.__context__ is None
