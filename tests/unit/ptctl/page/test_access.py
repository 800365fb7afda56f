"""Who reaches the page: who has the token, at this machine's own names."""

from typing import Any

import pytest
from aiohttp.test_utils import TestClient, TestServer

from ptctl.page.access import TokenAccess
from ptctl.page.answers import Answers
from ptctl.page.job_sources import ClusterJobs
from ptctl.page.server import application


@pytest.mark.parametrize("path", ["/api/jobs", "/static/app.js", "/", "/job?id=a%2Fb"])
async def test_nothing_is_shown_without_the_token(serve: Any, cluster: ClusterJobs, path: str) -> None:
    client = await serve(cluster, with_token=False)
    for headers in ({}, {"Cookie": f"posttrain-{client.port}=guess"}, {"Authorization": "Bearer guess"}):
        answer = await client.get(path, headers=headers)
        assert answer.status == 401
        assert "Set-Cookie" not in answer.headers


async def test_the_link_becomes_a_cookie_and_keeps_the_rest_of_the_address(serve: Any, cluster: ClusterJobs) -> None:
    client = await serve(cluster, with_token=False)
    answer = await client.get("/job?id=a%2Fb&token=secret&tab=curves", allow_redirects=False)
    assert (answer.status, answer.headers["Location"]) == (303, "/job?id=a/b&tab=curves")
    cookie = answer.headers["Set-Cookie"]
    assert "HttpOnly" in cookie
    assert "SameSite=Lax" in cookie
    assert (await client.get("/api/jobs")).status == 200


async def test_the_token_on_a_browsers_command_line_is_good_once(cluster: ClusterJobs) -> None:
    access = TokenAccess(Answers(cluster))
    token = access.for_one_use()
    async with TestClient(TestServer(application(access))) as client, TestClient(client.server) as another:
        assert (await client.get(f"/?token={token}")).status == 200
        assert (await another.get(f"/?token={token}")).status == 401
        assert (await client.get("/")).status == 200


async def test_a_form_asks_for_the_token_and_keeps_the_address(serve: Any, cluster: ClusterJobs) -> None:
    client = await serve(cluster, with_token=False)
    text = await (await client.get('/job?id="><script>')).text()
    assert '<input type="hidden" name="id" value="&quot;&gt;&lt;script&gt;">' in text


@pytest.mark.parametrize("host", ["evil.example", "evil.example:8011", "127.0.0.1.evil.example", "10.0.0.1"])
async def test_another_name_for_this_machine_is_refused_even_with_the_token(
    serve: Any, cluster: ClusterJobs, host: str
) -> None:
    client = await serve(cluster)
    answer = await client.get("/api/jobs?token=secret", headers={"Host": host})
    assert answer.status == 403
    assert host in await answer.text()


async def test_another_sites_script_is_not_let_in(serve: Any, cluster: ClusterJobs) -> None:
    client = await serve(cluster)
    answer = await client.get("/api/jobs", headers={"Origin": "https://evil.example"})
    assert not [name for name in answer.headers if name.startswith("Access-Control")]
    assert answer.headers["Cross-Origin-Resource-Policy"] == "same-origin"
    assert "script-src 'self'" in answer.headers["Content-Security-Policy"]
    assert "unsafe" not in answer.headers["Content-Security-Policy"]


@pytest.mark.parametrize("method", ["POST", "PUT", "PATCH", "DELETE", "OPTIONS"])
async def test_nothing_can_be_changed(serve: Any, cluster: ClusterJobs, method: str) -> None:
    client = await serve(cluster)
    assert (await client.request(method, "/api/jobs")).status == 405


@pytest.mark.parametrize("path", ["/static/../server.py", "/static/%2e%2e/server.py", "/static//etc/passwd"])
async def test_only_the_pages_own_files_are_served(serve: Any, cluster: ClusterJobs, path: str) -> None:
    client = await serve(cluster)
    assert (await client.get(path)).status in (403, 404)
