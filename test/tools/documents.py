"""What tools/JSON.md explains, and what a document has."""
import os
import pathlib
import re

TOOLS = pathlib.Path(os.environ["SOURCE_ROOT"]) / "tools"


def documented():
    """Paths by schema, those common to all with them."""
    found, section = {}, None
    for line in (TOOLS / "JSON.md").read_text(encoding="utf-8").splitlines():
        if line.startswith("## "):
            section = found.setdefault(line[3:], set())
        elif section is not None and line.startswith("- `"):
            names = re.findall(r"`([^`]+)`", line.split(": ")[0])
            parent = names[0].rpartition(".")[0]
            for name in names:
                section.add(parent + name if name.startswith(".") else name)
    common = found.pop("Common keys")
    return {schema: paths | common for schema, paths in found.items()}


def paths_of(value, at=""):
    if isinstance(value, dict):
        for key, inner in value.items():
            path = f"{at}.{key}" if at else key
            yield path
            if path not in ("circumstances.environment", "circumstances.files"):  # the user's
                yield from paths_of(inner, path)
    elif isinstance(value, list):
        for inner in value:
            yield from paths_of(inner, at + "[]")
