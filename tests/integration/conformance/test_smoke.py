def test_x(api, namespace, widgets):
    assert api.http("GET", "/version").json["major"] == "1"
