"""Kinetic's `example_data_api` and `example_fuse`: data for a function.

Small files travel as arguments: what is more than 64 KiB goes to the output by its content, once for all calls. Large
ones lie where pods read them: a bucket (`gs://…`), a claim (`volumes`), or on the embedded cluster any directory.
"""

import json
import tempfile
from pathlib import Path
from typing import Any

import posttrain


@posttrain.remote(accelerator="cpu-1")
def mean_label(table: str, settings: dict[str, Any]) -> dict[str, float]:
    """Take a file's text and a dict that was JSON, as they are."""
    labels = [int(line.split(",")[1]) for line in table.splitlines()[1:]]
    return {"mean": sum(labels) / len(labels), "rate": settings["rate"]}


@posttrain.remote(accelerator="cpu-1")
def sizes(files: dict[str, bytes]) -> dict[str, int]:
    """Take a whole directory by value."""
    return {name: len(content) for name, content in files.items()}


@posttrain.remote(accelerator="cpu-1")
def first_line(uri: str) -> str:
    """Read where the data lie, from a bucket just as from here, and fetch no more than is read."""
    import fsspec

    with fsspec.open(uri, "rt") as file:
        return str(file.readline()).strip()


def main(folder: Path) -> None:
    """Write data, and pass them on in three ways."""
    table, settings = folder / "train.csv", folder / "settings.json"
    table.write_text("feature,label\n1,100\n2,200\n3,300\n")
    settings.write_text(json.dumps({"rate": 0.01}))
    (folder / "weights.bin").write_bytes(bytes(200_000))
    runs = [
        mean_label.submit(table.read_text(), settings=json.loads(settings.read_text())),
        sizes.submit({path.name: path.read_bytes() for path in folder.iterdir()}),
        first_line.submit(table.as_uri()),
    ]
    for run in runs:
        print(run.value())


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as folder:
        main(Path(folder))
