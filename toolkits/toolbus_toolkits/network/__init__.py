"""The network access of toolkits: which addresses may be reached, and the HTTP client.

`addresses` decides, `transport` connects and bounds responses, `client` follows redirects and waits
where a server asks for it.
"""

from toolbus_toolkits.network.addresses import (
    AddressPolicy,
    AddressRefused,
    host_and_port,
    host_text,
)
from toolbus_toolkits.network.client import (
    FINAL_URL,
    MAX_RESPONSE_BYTES,
    NOT_SENT,
    SECRET_QUERY,
    WAIT_UNTIL,
    failure_reason,
    http_client,
    read_body,
    status_text,
)
from toolbus_toolkits.network.transport import MAX_ADDRESS_CHARS, BoundedStream, ResponseTooLarge

__all__ = [
    "FINAL_URL",
    "MAX_ADDRESS_CHARS",
    "MAX_RESPONSE_BYTES",
    "NOT_SENT",
    "SECRET_QUERY",
    "WAIT_UNTIL",
    "AddressPolicy",
    "AddressRefused",
    "BoundedStream",
    "ResponseTooLarge",
    "failure_reason",
    "host_and_port",
    "host_text",
    "http_client",
    "read_body",
    "status_text",
]
