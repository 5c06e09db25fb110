import hashlib
import json
import zipfile
from pathlib import Path

LETTERS = """\
---
name: letters
description: How this office writes letters.
version: 1.0.0
---
Begin with the date.
"""

shop = Path("shop")
shop.mkdir(exist_ok=True)
file = shop / "letters-1.0.0.zip"
with zipfile.ZipFile(file, "w") as archive:
    archive.writestr("SKILL.md", LETTERS)

entry = {
    "name": "letters",
    "kind": "skill",
    "version": "1.0.0",
    "description": "How this office writes letters.",
    "url": file.name,
    "sha256": hashlib.sha256(file.read_bytes()).hexdigest(),
    "size": file.stat().st_size,
}
index = {"toolbus_index": "1", "entries": [entry]}
(shop / "index.json").write_text(json.dumps(index, indent=2))
