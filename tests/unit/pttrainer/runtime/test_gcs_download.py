"""Downloads from a bucket, through Google's own client: whole, checked, of one version, and only what changed."""

import random
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from tests.builders.servers import bucket as bucketserver
from tests.builders.servers.bucket import Buckets

from pttrainer.errors import ConfigError
from pttrainer.runtime.io import gcs_download, storage

RANGE = 1000
LARGE = random.Random(0).randbytes(7 * RANGE + 123)


@pytest.fixture
def buckets(monkeypatch: pytest.MonkeyPatch) -> Iterator[Buckets]:
    monkeypatch.setattr(gcs_download, "RANGE_BYTES", RANGE)
    with bucketserver.serve() as served:
        for name, value in served.environment().items():
            monkeypatch.setenv(name, value)
        yield served


def download(directory: Path, notes: list[str] | None = None) -> None:
    blobs = storage.bucket("gs://models/m").blobs()
    gcs_download.download_all("gs://models/m", blobs, directory, [].append if notes is None else notes.append)


def contents(directory: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in directory.iterdir() if path.name != gcs_download.COPIED}


def test_files_of_any_size_arrive_whole_and_a_large_one_in_ranges(buckets: Buckets, tmp_path: Path) -> None:
    files = {"large": LARGE, "exact": LARGE[: 2 * RANGE], "small": b"x", "empty": b""}
    for name, content in files.items():
        buckets.put("models", f"m/{name}", content)
    notes: list[str] = []
    download(tmp_path, notes)
    assert contents(tmp_path) == files
    assert buckets.downloads.count("m/large") == 8
    assert notes[0] == "fetching gs://models/m: 4 files, 0.00 GB"


def test_only_what_changed_in_the_bucket_or_is_gone_from_the_disk_is_fetched_again(
    buckets: Buckets, tmp_path: Path
) -> None:
    for name in ("same", "changed", "deleted"):
        buckets.put("models", f"m/{name}", b"old")
    download(tmp_path)
    buckets.put("models", "m/changed", b"new")
    (tmp_path / "deleted").unlink()
    buckets.downloads.clear()
    download(tmp_path)
    assert sorted(buckets.downloads) == ["m/changed", "m/deleted"]
    assert contents(tmp_path) == {"same": b"old", "changed": b"new", "deleted": b"old"}


def test_an_answer_that_breaks_off_is_asked_for_again(buckets: Buckets, tmp_path: Path) -> None:
    buckets.put("models", "m/large", LARGE)
    buckets.cut = 1
    download(tmp_path)
    assert contents(tmp_path) == {"large": LARGE}


def test_corrupt_content_is_refused_and_the_old_file_stays(buckets: Buckets, tmp_path: Path) -> None:
    buckets.put("models", "m/large", b"old")
    download(tmp_path)
    buckets.put("models", "m/large", LARGE)
    buckets.corrupt = True
    with pytest.raises(ConfigError, match=r"gs://models/m/large: is corrupt after the download: .*; hint: run again"):
        download(tmp_path)
    assert contents(tmp_path) == {"large": b"old"}
    buckets.corrupt = False
    download(tmp_path)
    assert contents(tmp_path) == {"large": LARGE}


def test_an_object_that_is_replaced_after_it_was_listed_is_refused(buckets: Buckets, tmp_path: Path) -> None:
    buckets.put("models", "m/large", LARGE)
    blobs = storage.bucket("gs://models/m").blobs()
    buckets.put("models", "m/large", LARGE[::-1])
    with pytest.raises(ConfigError, match=r"gs://models/m/large: cannot be read: .*generation is 2"):
        gcs_download.download_all("gs://models/m", blobs, tmp_path, print)
    assert contents(tmp_path) == {}


def test_files_before_the_one_that_failed_are_not_fetched_again(buckets: Buckets, tmp_path: Path) -> None:
    buckets.put("models", "m/a", b"a")
    buckets.put("models", "m/b", LARGE)
    blobs = storage.bucket("gs://models/m").blobs()
    buckets.put("models", "m/b", b"replaced")
    with pytest.raises(ConfigError):
        gcs_download.download_all("gs://models/m", blobs, tmp_path, print)
    buckets.downloads.clear()
    download(tmp_path)
    assert buckets.downloads == ["m/b"]


def test_a_full_disk_is_a_storage_error_and_leaves_nothing(buckets: Buckets, tmp_path: Path) -> None:
    buckets.put("models", "m/large", LARGE)
    script = (
        "import pathlib, resource, signal, sys\n"
        "from pttrainer.errors import StorageError\n"
        "from pttrainer.runtime.io import gcs_download, storage\n"
        "blobs = storage.bucket('gs://models/m').blobs()\n"
        "signal.signal(signal.SIGXFSZ, signal.SIG_IGN)\n"
        f"resource.setrlimit(resource.RLIMIT_FSIZE, ({3 * RANGE}, {3 * RANGE}))\n"
        "try:\n    gcs_download.download_all('gs://models/m', blobs, pathlib.Path(sys.argv[1]), print)\n"
        "except StorageError as error:\n    print('refused:', error)\n"
    )
    out = subprocess.run([sys.executable, "-c", script, str(tmp_path)], capture_output=True, text=True, check=True)
    assert f"refused: {tmp_path}: cannot be written: File too large" in out.stdout
    assert contents(tmp_path) == {}


def test_what_a_killed_download_left_is_gone_after_the_next(buckets: Buckets, tmp_path: Path) -> None:
    buckets.put("models", "m/large", LARGE)
    script = (
        "import os, pathlib, sys\nfrom pttrainer.runtime.io import gcs_download, storage\n"
        "pathlib.Path.replace = lambda *paths: os._exit(9)\n"
        "blobs = storage.bucket('gs://models/m').blobs()\n"
        "gcs_download.download_all('gs://models/m', blobs, pathlib.Path(sys.argv[1]), print)\n"
    )
    killed = subprocess.run([sys.executable, "-c", script, str(tmp_path)], check=False)
    assert killed.returncode == 9
    assert "large" not in contents(tmp_path)
    download(tmp_path)
    assert contents(tmp_path) == {"large": LARGE}


def test_processes_that_fetch_the_same_at_once_all_have_it(buckets: Buckets, tmp_path: Path) -> None:
    buckets.put("models", "m/large", LARGE)
    with ThreadPoolExecutor(4) as threads:
        for _ in threads.map(lambda _: download(tmp_path), range(4)):
            pass
    assert contents(tmp_path) == {"large": LARGE}
