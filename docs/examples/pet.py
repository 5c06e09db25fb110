import asyncio

from toolbus import ToolContext
from toolbus_toolkits.openapi import ApiOptions, OpenApiToolkit

options = ApiOptions(allow_private=True)
pets = OpenApiToolkit.from_file("pets.yaml", tags=["read"], options=options)
arguments = {"name": "../admin?x", "fields": ["age", "owner"]}
print(asyncio.run(pets.execute(ToolContext(), "getPet", arguments)).value)
