"""Print what the project of this folder depends on, with the extras named: the layer of the image below its code."""

import sys
import tomllib
from pathlib import Path

project = tomllib.loads(Path("pyproject.toml").read_text())["project"]
extras = [need for extra in sys.argv[1:] for need in project["optional-dependencies"][extra]]
print(*project["dependencies"], *extras, sep="\n")
