"""Rows with images: where they are named, and what a row that is wrong is answered."""

import base64
import datetime
import http.server
import ipaddress
import json
import ssl
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow
import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from pyarrow import parquet
from tests.builders.pictures import drawn, encoded
from tests.builders.servers import bucket as bucketserver

from ptapi.spec import DataSource
from pttrainer.data import rows
from pttrainer.data.sources.images import decoding, reading
from pttrainer.data.sources.images.references import Origin, reference
from pttrainer.errors import DataError

PICTURE = drawn(9, 5)
PNG = encoded(PICTURE)
INLINE = f"data:image/png;base64,{base64.b64encode(PNG).decode()}"
ANSWER = {"role": "assistant", "content": "A cat."}
IMAGE, TEXT = {"type": "image"}, {"type": "text", "text": "What is it?"}


def talk(*parts: Any) -> list[dict[str, Any]]:
    return [{"role": "user", "content": list(parts)}, ANSWER]


def load(tmp_path: Path, *lines: Any, **options: Any) -> rows.Rows:
    (tmp_path / "rows.jsonl").write_text("\n".join(map(json.dumps, lines)))
    return rows.load(DataSource(uri=f"file://{tmp_path}/rows.jsonl"), "spec.data.train", **options)


def only_picture(read: rows.Rows) -> Any:
    (row,) = read.rows
    (image,) = row.images
    return decoding.picture(image)


@pytest.mark.parametrize(
    "row",
    [
        {"messages": talk({"type": "image", "path": "pictures/a.png"}, TEXT)},
        {"messages": talk({"type": "image", "image": {"path": "pictures/a.png"}}, TEXT)},
        {"messages": talk({"type": "image", "url": "HERE/pictures/a.png"}, TEXT)},
        {"messages": talk({"type": "image", "base64": INLINE.partition(",")[2]}, TEXT)},
        {"messages": talk({"type": "image_url", "image_url": {"url": INLINE}}, TEXT)},
        {"messages": talk(IMAGE, TEXT), "images": ["pictures/a.png"]},
        {"messages": [{"role": "user", "content": "What is it?"}, ANSWER], "images": [INLINE]},
        {"conversations": [{"from": "human", "value": "<image>What is it?"}, {"from": "gpt", "value": "A cat."}],
         "image": "pictures/a.png"},
        {"prompt": "What is it?", "completion": "A cat.", "image": "pictures/../pictures/a.png"},
        {"question": "What is it?", "answer": "A cat.", "images": '["pictures/a.png"]'},
    ],
)  # fmt: skip
def test_every_way_to_name_an_image_gives_one_conversation(tmp_path: Path, row: dict[str, Any]) -> None:
    (tmp_path / "pictures").mkdir()
    (tmp_path / "pictures" / "a.png").write_bytes(PNG)
    read = load(tmp_path, json.loads(json.dumps(row).replace("HERE", f"file://{tmp_path}")))
    assert list(read.rows[0].messages) == talk(IMAGE, TEXT)
    assert only_picture(read).tobytes() == PICTURE.tobytes()


@pytest.mark.parametrize("directory", ["my pictures", "run #2", "a?b", "50%20"])
def test_names_of_directories_and_files_mean_themselves(tmp_path: Path, directory: str) -> None:
    home = tmp_path / directory
    home.mkdir()
    (home / "a #1?.png").write_bytes(PNG)
    for name in ("a #1?.png", f"file://{home}/a #1?.png"):
        assert only_picture(load(home, {"prompt": "?", "completion": "!", "image": name})).size == PICTURE.size


@pytest.mark.parametrize(
    "url", [INLINE.replace(",", ",\n "), INLINE.replace("base64", "BASE64"), INLINE.replace("png", "jpeg")]
)
def test_base64_may_have_line_breaks_and_another_type(tmp_path: Path, url: str) -> None:
    assert only_picture(load(tmp_path, {"prompt": "?", "completion": "!", "image": url})).size == PICTURE.size


@pytest.mark.parametrize(
    "image", [PNG, {"bytes": PNG}, {"bytes": PNG, "path": "a", "label": "x"}], ids=["plain", "alone", "labelled"]
)
@pytest.mark.parametrize("is_list", [True, False], ids=["list", "one"])
def test_every_form_of_bytes_in_parquet_is_an_image(tmp_path: Path, image: Any, is_list: bool) -> None:
    row = {"prompt": ["?"], "completion": ["!"], "image": [[image] if is_list else image]}
    parquet.write_table(pyarrow.table(row), tmp_path / "rows.parquet")
    read = rows.load(DataSource(uri=f"file://{tmp_path}/rows.parquet"), "spec.data.train")
    assert only_picture(read).tobytes() == PICTURE.tobytes()
    assert "PNG" not in json.dumps(read.rows[0].fields)


def test_bytes_in_parquet_are_an_image_and_no_part_of_the_fields(tmp_path: Path) -> None:
    messages = [
        {"role": "user", "content": [{**IMAGE, "text": None}, TEXT]},
        {"role": "assistant", "content": [{"type": "text", "text": "A cat."}]},
    ]
    table = pyarrow.table({"messages": [messages], "images": [[{"bytes": PNG, "path": "a.png"}]]})
    parquet.write_table(table, tmp_path / "rows.parquet")
    read = rows.load(DataSource(uri=f"file://{tmp_path}/rows.parquet"), "spec.data.train")
    assert list(read.rows[0].messages) == talk(IMAGE, TEXT)
    assert only_picture(read).tobytes() == PICTURE.tobytes()
    assert json.dumps(read.rows[0].fields["images"]) == '[{"path": "a.png"}]'


@pytest.mark.parametrize(
    "row",
    [
        {"prompt": "What is it?", "chosen": "A cat.", "rejected": "A dog.", "image": "a.png"},
        {"chosen": talk({**IMAGE, "url": "a.png"}, TEXT),
         "rejected": [*talk({**IMAGE, "url": "a.png"}, TEXT)[:1], {**ANSWER, "content": "A dog."}]},
    ],
)  # fmt: skip
def test_both_answers_of_a_preference_have_the_images_of_their_prompt(tmp_path: Path, row: dict[str, Any]) -> None:
    (tmp_path / "a.png").write_bytes(PNG)
    read = load(tmp_path, row)
    assert list(read.rows[0].messages) == talk(IMAGE, TEXT)
    assert list(read.rows[0].rejected) == [*talk(IMAGE, TEXT)[:1], {**ANSWER, "content": "A dog."}]
    assert only_picture(read).tobytes() == PICTURE.tobytes()


def test_an_image_column_that_only_a_later_row_has_is_read(tmp_path: Path) -> None:
    plain = {"prompt": "1+1?", "completion": "2"}
    read = load(tmp_path, plain, {**plain, "image": INLINE}, {**plain, "image": None})
    assert [len(row.images) for row in read.rows] == [0, 1, 0]


def test_parts_of_text_are_joined_whatever_their_type_is_called(tmp_path: Path) -> None:
    parts = [
        {"type": "input_text", "text": "What "},
        {"type": "text", "text": "is", "image": None},
        {"text": " it"},
        "?",
    ]
    (row,) = load(tmp_path, {"messages": talk(*parts)}).rows
    assert row.messages[0]["content"] == "What is it?"


def test_images_of_a_bucket_stand_beside_the_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    with bucketserver.serve() as buckets:
        monkeypatch.setenv("STORAGE_EMULATOR_HOST", buckets.url)
        buckets.put("data", "set/rows.jsonl", json.dumps({"prompt": "?", "completion": "!", "image": "a.png"}).encode())
        buckets.put("data", "set/a.png", PNG)
        read = rows.load(DataSource(uri="gs://data/set/rows.jsonl"), "spec.data.train")
        assert only_picture(read).tobytes() == PICTURE.tobytes()


WEB = {"messages": talk({"type": "image_url", "image_url": {"url": "https://localhost:1/a.png"}}, TEXT)}


@pytest.mark.parametrize(
    ("row", "answer"),
    [
        ({"messages": talk(IMAGE, TEXT)}, "a message has an image part without an image; accepted: a column"),
        ({"messages": talk(IMAGE, TEXT), "images": [INLINE, INLINE]}, "'images': has 2 images; accepted: 1, as"),
        ({"messages": talk({**IMAGE, "url": INLINE}, TEXT), "image": INLINE}, "messages carry images, too; accepted:"),
        ({"prompt": "<image> and <image>", "completion": "!", "image": INLINE}, "has 1 images; accepted: 2, as texts"),
        ({"messages": [ANSWER], "image": INLINE}, "column 'image': no user message that the images are part of"),
        ({"messages": talk({"type": "video", "url": "a.mp4"})}, "message 0: has a part of type 'video'; accepted: te"),
        ({"prompt": "?", "completion": "!", "image": 5}, "column 'image'[0]: is a number; accepted: a path beside"),
        ({"prompt": "?", "completion": "!", "image": "data:image/png;base64,?"}, "accepted: data:image/png;base64,…"),
        ({"prompt": "?", "completion": "!", "image": {"bytes": None, "path": None}},
         "column 'image'[0]: is an object with bytes: null, path: null; accepted: a path beside the file"),
        ({"prompt": "?", "completion": "!", "image": {}}, "column 'image'[0]: is an object with nothing in it; accept"),
        ({"prompt": "?", "completion": "!", "image": "iVBO" * 999},
         f"{('iVBO' * 15)!r}: a name of 3,996 characters; accepted: at most 1,024; hint: base64 has data:image/png"),
        ({"prompt": "?", "completion": "!", "image": "gs://B/a.png"}, "gs://B/a.png: bucket 'B'; accepted: 3 to 63"),
        ({"prompt": "?", "completion": "!", "image": "http://a/b.png"}, "http://; accepted: a path beside the file"),
        ({"chosen": talk({**IMAGE, "url": INLINE}, TEXT), "rejected": [*talk(TEXT)[:1], {**ANSWER, "content": "No."}]},
         "'chosen' and 'rejected' have other images; accepted: images of the prompt, the same in both"),
        ({"text": "?", "images": [INLINE]}, "has images, which rows of format text cannot have; accepted: images in"),
        (WEB, "hint: set spec.data.allowHttpsImages: true, or copy them"),
    ],
)  # fmt: skip
def test_wrong_rows_are_answered_by_line_and_column(tmp_path: Path, row: dict[str, Any], answer: str) -> None:
    with pytest.raises(DataError) as raised:
        load(tmp_path, row)
    assert "rows.jsonl line 1" in str(raised.value)
    assert answer in str(raised.value)


@pytest.mark.parametrize(
    ("name", "answer"),
    [
        ("page.jpg", r"page.jpg: is no image \(28 bytes: b'<!DOCTYPE html><'…\); accepted: JPEG"),
        ("empty.png", r"empty.png: is no image \(0 bytes\); accepted: JPEG"),
        ("gone.png", "gone.png: no such file"),
        ("directory", "directory: is not a regular file"),
        ("loop", "loop: cannot be read: Too many levels of symbolic links"),
        ("a\0.png", "cannot be read: embedded null byte"),
        ("x" * 300, "cannot be read: File name too long"),
    ],
)  # fmt: skip
def test_a_file_that_is_no_image_is_answered_with_its_row_and_its_name(tmp_path: Path, name: str, answer: str) -> None:
    (tmp_path / "page.jpg").write_bytes(b"<!DOCTYPE html><html></html>")
    (tmp_path / "empty.png").touch()
    (tmp_path / "directory").mkdir()
    (tmp_path / "loop").symlink_to("loop")
    with pytest.raises(DataError, match=rf"rows.jsonl line 1: column 'image'\[0\]: .*{answer}"):
        only_picture(load(tmp_path, {"prompt": "?", "completion": "!", "image": name}))


def test_a_file_larger_than_any_picture_is_not_read(tmp_path: Path) -> None:
    with (tmp_path / "video.mp4").open("wb") as file:
        file.truncate(reading.MAX_BYTES + 1)
    with pytest.raises(DataError, match=r"video.mp4: has 536,870,913 bytes; accepted: at most 536,870,912"):
        only_picture(load(tmp_path, {"prompt": "?", "completion": "!", "image": "video.mp4"}))


def test_rows_of_strangers_name_no_file_of_this_machine() -> None:
    hub = Origin("hf://datasets/org/name/data/train.jsonl")
    for path in ("/etc/passwd", "file:///etc/passwd", "gs://bucket/a.png", "a.png"):
        with pytest.raises(DataError, match="beside the files of a hub data set: not supported yet"):
            reference(path, "row 1", hub)
    with pytest.raises(DataError, match="a path on a machine; accepted: a path beside gs:"):
        reference("/etc/passwd", "row 1", Origin("gs://lab/rows.jsonl"))


@pytest.fixture
def web(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """A server behind TLS: `/a.png` is a picture, `/moved` leads to it, `/plain` leads to http."""
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "127.0.0.1")])
    now = datetime.datetime.now(datetime.UTC)
    certificate = (
        x509.CertificateBuilder(
            name, name, key.public_key(), 1, now - datetime.timedelta(1), now + datetime.timedelta(1)
        )
        .add_extension(x509.SubjectAlternativeName([x509.IPAddress(ipaddress.ip_address("127.0.0.1"))]), critical=False)
        .sign(key, hashes.SHA256())
    )
    private = key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
    (tmp_path / "both.pem").write_bytes(private + certificate.public_bytes(serialization.Encoding.PEM))

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            target = {"/moved": "/a.png", "/plain": "http://127.0.0.1/a.png"}.get(self.path)
            self.send_response(302 if target else 200 if self.path == "/a.png" else 404)
            if target:
                self.send_header("Location", target)
            self.end_headers()
            self.wfile.write(PNG if self.path == "/a.png" else b"")

        def log_message(self, *_: Any) -> None:
            pass

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(tmp_path / "both.pem")
    server.socket = context.wrap_socket(server.socket, server_side=True)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    monkeypatch.setenv("SSL_CERT_FILE", str(tmp_path / "both.pem"))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    yield f"https://127.0.0.1:{server.server_port}"
    server.shutdown()
    server.server_close()


def test_images_of_the_web_are_fetched_once_where_the_job_allows_it(tmp_path: Path, web: str) -> None:
    row = {"prompt": "?", "completion": "!"}
    read = load(tmp_path, {**row, "image": f"{web}/moved"}, https=True)
    assert only_picture(read).tobytes() == PICTURE.tobytes()
    (kept,) = (tmp_path / "posttrain" / "images").iterdir()
    kept.write_bytes(encoded(drawn(2, 3)))
    assert only_picture(read).size == (2, 3), "the second time comes from the cache"
    for path, answer in (("gone", "404"), ("plain", r"leads to http://127.0.0.1/a.png; accepted: https://")):
        with pytest.raises(DataError, match=f"column 'image'.*cannot be fetched: .*{answer}"):
            only_picture(load(tmp_path, {**row, "image": f"{web}/{path}"}, https=True))
