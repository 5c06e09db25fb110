"""APIs as toolkits, from their OpenAPI 3.0, 3.1 or Swagger 2.0 description.

`documents` reads documents and follows `$ref`, `descriptions` makes the one model of all versions
(`model`). `schemas`, `body_fields` and `arguments` make the definition of a tool; `fitting` drops
what cannot be checked and what a room does not take. `requests` and `responses` translate a call,
`calls` sends it.
"""

try:
    from toolbus_toolkits.openapi.documents import SpecError
    from toolbus_toolkits.openapi.responses import PageRule
    from toolbus_toolkits.openapi.toolkit import ApiOptions, OpenApiConfig, OpenApiToolkit, openapi
except ModuleNotFoundError as error:
    if error.name in ("httpcore2", "httpx2", "referencing", "yaml"):
        raise ModuleNotFoundError(
            "the toolkit openapi needs more packages: pip install 'toolbus[openapi]'",
            name=error.name,
        ) from error
    raise

__all__ = ["ApiOptions", "OpenApiConfig", "OpenApiToolkit", "PageRule", "SpecError", "openapi"]
