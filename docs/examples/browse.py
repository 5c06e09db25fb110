from pathlib import Path

from toolbus_toolkits.registries import RegistryHub, RegistrySource

hub = RegistryHub([RegistrySource("office", path=Path("shop"))])
for entry in hub.search("letters").entries:
    offer = hub.offer(entry.source, entry.name)
    print(entry.origin, *offer.notes, *offer.plan.lines(), sep="\n")
