"""A stand-in for Google Cloud Storage's JSON API: enough for its Python client, gcsfs and tensorstore.

Objects live in memory. Left out: access control, metadata, versions (the newest alone is kept; generations count up,
and preconditions on them are checked in the moment of the write, as the service does).
"""

import base64
import email.parser
import email.policy
import json
import re
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qs, unquote, urlsplit

import google_crc32c
import pytest
from tests.builders.servers import request_body

from ptctl.runs.storage import bucket as ptctl_bucket

OBJECT = re.compile(r"/b/([^/]+)/o/([^/]+)$")
COPY = re.compile(r"/b/([^/]+)/o/([^/]+)/(?:rewriteTo|copyTo)/b/([^/]+)/o/([^/]+)$")
COMPOSE = re.compile(r"/b/([^/]+)/o/([^/]+)/compose$")
OBJECTS = re.compile(r"/b/([^/]+)/o/?$")
BUCKET = re.compile(r"/b/([^/]+)$")
LAYOUT = re.compile(r"/b/([^/]+)/storageLayout$")
RANGE = re.compile(r"bytes=(\d+)-(\d*)$")
CONTENT_RANGE = re.compile(r"bytes (?:(\d+)-(\d+)|\*)/(\d+|\*)$")


class StaleError(Exception):
    """A precondition does not hold."""


@dataclass
class Buckets:
    """All objects, by (bucket, name), and where they are served. `full` makes every write fail; of so many uploads as
    `unanswered` says the answer is lost: they are done, and the client hears of a fault. `downloads` names every object
    whose content was asked for; so many of these answers as `cut` says break off halfway, and `corrupt` changes a byte.
    """

    objects: dict[tuple[str, str], tuple[int, bytes]] = field(default_factory=dict)
    uploads: dict[str, tuple[str, str, str | None, bytearray]] = field(default_factory=dict)
    lock: threading.Lock = field(default_factory=threading.Lock)
    generation: int = 0
    full: bool = False
    unanswered: int = 0
    downloads: list[str] = field(default_factory=list)
    cut: int = 0
    corrupt: bool = False
    url: str = ""

    def put(self, bucket: str, name: str, content: bytes, match: str | None = None) -> dict[str, Any]:
        """Replaces an object; returns its resource. Raises StaleError where `match` is not its generation (0: none)."""
        with self.lock:
            self.check(bucket, name, match)
            self.generation += 1
            self.objects[bucket, name] = (self.generation, content)
            return self.resource(bucket, name)

    def check(self, bucket: str, name: str, match: str | None) -> None:
        """Raises StaleError where `match` is not the object's generation."""
        there = self.objects.get((bucket, name), (0, b""))[0]
        if match is not None and int(match) != there:
            raise StaleError(f"generation is {there}")

    def names(self, bucket: str, prefix: str = "") -> list[str]:
        """Objects of a bucket, sorted."""
        return sorted(name for owner, name in list(self.objects) if owner == bucket and name.startswith(prefix))

    def content(self, bucket: str, name: str) -> bytes:
        """An object's bytes."""
        return self.objects[bucket, name][1]

    def resource(self, bucket: str, name: str) -> dict[str, Any]:
        """What the JSON API says of an object."""
        generation, content = self.objects[bucket, name]
        checksum = base64.b64encode(google_crc32c.value(content).to_bytes(4, "big")).decode()
        return {
            "kind": "storage#object",
            "id": f"{bucket}/{name}/{generation}",
            "bucket": bucket,
            "name": name,
            "generation": str(generation),
            "metageneration": "1",
            "size": str(len(content)),
            "crc32c": checksum,
            "etag": str(generation),
            "contentType": "application/octet-stream",
            "timeCreated": "2026-01-01T00:00:00.000Z",
            "updated": "2026-01-01T00:00:00.000Z",
        }

    def environment(self) -> dict[str, str]:
        """Makes every client of a process come here, and look for no credentials."""
        return {
            "STORAGE_EMULATOR_HOST": self.url,
            "TENSORSTORE_GCS_HTTP_URL": self.url,
            "GOOGLE_AUTH_TOKEN_FOR_TESTING": "none",
            "GCSFS_EXPERIMENTAL_ZB_HNS_SUPPORT": "false",
        }


@contextmanager
def serve() -> Iterator[Buckets]:
    """A running server on a free port."""
    buckets = Buckets()
    server = ThreadingHTTPServer(("127.0.0.1", 0), type("Handler", (_Handler,), {"buckets": buckets}))
    server.daemon_threads = True
    buckets.url = f"http://127.0.0.1:{server.server_address[1]}"
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield buckets
    finally:
        server.shutdown()
        server.server_close()


@contextmanager
def serve_here(monkeypatch: pytest.MonkeyPatch) -> Iterator[Buckets]:
    """A running server that the clients of this process use, ptctl's too."""
    with serve() as served:
        for name, value in served.environment().items():
            monkeypatch.setenv(name, value)
        ptctl_bucket._client.cache_clear()
        yield served
        ptctl_bucket._client.cache_clear()


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    buckets: Buckets

    def log_message(self, *arguments: Any) -> None:
        """Silence."""

    def handle_one_request(self) -> None:
        try:
            super().handle_one_request()
        except (BrokenPipeError, ConnectionResetError):  # a client that was killed
            self.close_connection = True
        except StaleError as error:
            self._error(412, str(error))

    def do_GET(self) -> None:
        path, query = self._target()
        if LAYOUT.search(path):
            return self._json(200, {"hierarchicalNamespace": {"enabled": False}, "locationType": "region"})
        if matched := OBJECT.search(path):
            bucket, name = unquote(matched[1]), unquote(matched[2])
            if (bucket, name) not in self.buckets.objects:
                return self._error(404, f"No such object: {bucket}/{name}")
            if query.get("alt") == "media":
                self.buckets.check(bucket, name, query.get("ifGenerationMatch"))
                return self._media(bucket, name)
            return self._json(200, self.buckets.resource(bucket, name))
        if matched := OBJECTS.search(path):
            return self._json(200, self._list(unquote(matched[1]), query))
        if matched := BUCKET.search(path):
            return self._json(200, {"kind": "storage#bucket", "name": matched[1], "id": matched[1], "location": "US"})
        return self._error(404, path)

    def do_POST(self) -> None:
        path, query = self._target()
        if "upload_id" in query:  # gcsfs posts the parts that others put
            return self.do_PUT()
        body = request_body.read(self)
        if self.buckets.full:
            return self._error(403, "The bucket is over its quota")
        if matched := COPY.search(path):
            source, target = (unquote(matched[1]), unquote(matched[2])), (unquote(matched[3]), unquote(matched[4]))
            if source not in self.buckets.objects:
                return self._error(404, f"No such object: {source}")
            made = self.buckets.put(*target, self.buckets.content(*source))
            sizes = {"totalBytesRewritten": made["size"], "objectSize": made["size"]}
            rewritten = {"kind": "storage#rewriteResponse", "done": True, "resource": made, **sizes}
            return self._json(200, rewritten if "/rewriteTo/" in path else made)
        if matched := COMPOSE.search(path):
            parts = [part["name"] for part in json.loads(body)["sourceObjects"]]
            whole = b"".join(self.buckets.content(unquote(matched[1]), part) for part in parts)
            return self._json(200, self.buckets.put(unquote(matched[1]), unquote(matched[2]), whole))
        if matched := OBJECTS.search(path):
            return self._insert(unquote(matched[1]), query, body)
        return self._error(404, path)

    def do_PUT(self) -> None:
        _, query = self._target()
        body = request_body.read(self)
        bucket, name, match, content = self.buckets.uploads[query["upload_id"]]
        matched = CONTENT_RANGE.match(self.headers.get("Content-Range", f"bytes 0-{len(body) - 1}/{len(body)}"))
        if matched and matched[1] is not None:
            del content[int(matched[1]) :]
            content += body
        if matched and matched[3] != "*" and int(matched[3]) == len(content):
            del self.buckets.uploads[query["upload_id"]]
            return self._json(200, self.buckets.put(bucket, name, bytes(content), match))
        self._respond(308, b"", {"Range": f"bytes=0-{len(content) - 1}"} if content else {})
        return None

    def do_PATCH(self) -> None:
        request_body.read(self)
        self.do_GET()

    def do_DELETE(self) -> None:
        path, query = self._target()
        matched = OBJECT.search(path)
        with self.buckets.lock:
            if matched:
                self.buckets.check(unquote(matched[1]), unquote(matched[2]), query.get("ifGenerationMatch"))
            gone = matched and self.buckets.objects.pop((unquote(matched[1]), unquote(matched[2])), None)
        if gone is None:
            return self._error(404, f"No such object: {path}")
        self._respond(204, b"", {})
        return None

    def _insert(self, bucket: str, query: dict[str, str], body: bytes) -> None:
        kind = query.get("uploadType")
        if kind == "resumable":
            name = query.get("name") or json.loads(body)["name"]
            identifier = f"upload-{len(self.buckets.uploads)}-{self.buckets.generation}-{id(body)}"
            self.buckets.uploads[identifier] = (bucket, name, query.get("ifGenerationMatch"), bytearray())
            where = f"{self.buckets.url}/upload/storage/v1/b/{bucket}/o?uploadType=resumable&upload_id={identifier}"
            return self._respond(200, b"", {"Location": where})
        if kind == "multipart":
            header = f"Content-Type: {self.headers['Content-Type']}\r\n\r\n".encode()
            parsed = email.parser.BytesParser(policy=email.policy.HTTP).parsebytes(header + body)
            about, media = (part.get_payload(decode=True) for part in parsed.iter_parts())
            # The parser guards line ends of text; the bytes between the boundaries are what was sent.
            boundary = b"--" + parsed.get_boundary().encode()
            media = body.split(boundary)[2].partition(b"\r\n\r\n")[2] or body.split(boundary)[2].partition(b"\n\n")[2]
            name, content = json.loads(about)["name"], media[:-2] if media.endswith(b"\r\n") else media[:-1]
        else:
            name, content = query["name"], body
        made = self.buckets.put(bucket, name, content, query.get("ifGenerationMatch"))
        if self.buckets.unanswered:
            self.buckets.unanswered -= 1
            return self._error(503, "the answer is lost")
        self._json(200, made)
        return None

    def _list(self, bucket: str, query: dict[str, str]) -> dict[str, Any]:
        prefix, delimiter = query.get("prefix", ""), query.get("delimiter", "")
        items, prefixes = [], set()
        for name in self.buckets.names(bucket, prefix):
            inside, mark, _ = name[len(prefix) :].partition(delimiter) if delimiter else ("", "", "")
            if name < query.get("startOffset", "") or ("endOffset" in query and name >= query["endOffset"]):
                continue
            if mark:
                prefixes.add(prefix + inside + mark)
            else:
                items.append(self.buckets.resource(bucket, name))
        return {"kind": "storage#objects", "items": items, "prefixes": sorted(prefixes)}

    def _media(self, bucket: str, name: str) -> None:
        resource, content = self.buckets.resource(bucket, name), self.buckets.content(bucket, name)
        self.buckets.downloads.append(name)
        if self.buckets.corrupt:
            content = content[:-1] + bytes([content[-1] ^ 1])
        headers = {
            "X-Goog-Generation": resource["generation"],
            "X-Goog-Hash": f"crc32c={resource['crc32c']}",
            "X-Goog-Stored-Content-Length": resource["size"],
            "X-Goog-Stored-Content-Encoding": "identity",
            "Content-Type": "application/octet-stream",
            "ETag": resource["etag"],
        }
        if matched := RANGE.match(self.headers.get("Range", "")):
            first, last = int(matched[1]), min(int(matched[2] or len(content) - 1), len(content) - 1)
            if first >= len(content):
                return self._error(416, "range not satisfiable")
            headers["Content-Range"] = f"bytes {first}-{last}/{len(content)}"
            return self._respond(206, content[first : last + 1], headers)
        self._respond(200, content, headers)
        return None

    def _target(self) -> tuple[str, dict[str, str]]:
        parts = urlsplit(self.path)
        return parts.path, {key: values[-1] for key, values in parse_qs(parts.query).items()}

    def _error(self, code: int, message: str) -> None:
        self._json(code, {"error": {"code": code, "message": message, "errors": [{"message": message}]}})

    def _json(self, code: int, document: dict[str, Any]) -> None:
        self._respond(code, json.dumps(document).encode(), {"Content-Type": "application/json"})

    def _respond(self, code: int, content: bytes, headers: dict[str, str]) -> None:
        self.send_response(code)
        for name, value in headers.items():
            self.send_header(name, value)
        if code != 204:
            self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        if code in (200, 206) and "X-Goog-Hash" in headers and self.buckets.cut:
            self.buckets.cut -= 1
            content, self.close_connection = content[: len(content) // 2], True
        self.wfile.write(content)
