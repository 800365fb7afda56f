"""What a run costs, and where to look at it."""

from urllib.parse import unquote

import pytest
from tests.builders.operator.job_steps import bring_up, status
from tests.builders.operator.world import Operator, World, job_manifest

from ptapi.load import parse_job
from ptoperator.render import layout_of
from ptoperator.settings import Settings, SettingsError
from ptoperator.settings.prices import PriceError, Prices, parse
from ptoperator.status.links import links, rank_logs_link

TABLE = '{"currency": "EUR", "perChipHour": {"v6e": 2.0, "v6e/spot": 0.5}}'


def test_money_is_chips_times_hours_times_the_price_of_the_option() -> None:
    prices = parse(TABLE)
    assert prices.amount({"v6e": 4}, {"spot": 1800, "onDemand": 3600}) == "9.00 EUR"
    assert prices.amount({"v6e": 4}, {"existing": 900}) == "2.00 EUR"
    assert prices.amount({"v6e": 4}, {}) == ""
    assert prices.amount({"v5p": 4}, {"spot": 3600}) == ""
    assert prices.amount({"v6e": 4, "v5p": 4}, {"spot": 3600}) == "", "one price is missing"
    assert Prices().amount({"v6e": 4}, {"spot": 3600}) == ""


@pytest.mark.parametrize("text", ["{}", "[]", "7", "x", '{"currency": "EUR"}', TABLE.replace("0.5", '"much"'),
                                  TABLE.replace("0.5", "-1"), TABLE.replace("0.5", "NaN")])  # fmt: skip
def test_a_wrong_price_table_is_refused_at_start(text: str) -> None:
    with pytest.raises(PriceError, match="accepted"):
        parse(text)
    with pytest.raises(SettingsError, match="POSTTRAIN_PRICES: "):
        Settings.from_env({"POSTTRAIN_PRICES": text})


def test_a_running_job_shows_chip_hours_and_money(operator: Operator, world: World) -> None:
    operator.settings = Settings(prices=TABLE)
    bring_up(operator, accelerator={"type": "v6e-4"}, preflight="Skip")
    for _ in range(360):
        world.tick(10)
        world.progress(4)
        operator.work()
    cost = status(world).cost
    assert cost.held == {"existing": status(world).time.held}
    assert float(cost.chip_hours) == pytest.approx(4.0, abs=0.1)
    assert cost.amount == f"{status(world).time.held * 4 * 2.0 / 3600:.2f} EUR"


def test_virtual_devices_cost_nothing(operator: Operator, world: World) -> None:
    operator.settings = Settings(prices=TABLE)
    bring_up(operator)
    assert (status(world).cost.chip_hours, status(world).cost.amount) == ("", "")


def test_links_lead_to_the_logs_of_pods_that_are_gone() -> None:
    settings = Settings(gke_project="my-project", gke_location="us-east5", gke_cluster="tpus")
    manifest = job_manifest(accelerator={"type": "v6e-16"}, training={"batchSize": 16})
    shown = links(layout_of(parse_job(manifest), settings))
    assert shown.cloud_logs.startswith("https://console.cloud.google.com/logs/query;query=")
    assert shown.cloud_logs.endswith("?project=my-project")
    query = unquote(shown.cloud_logs)
    for line in (
        'resource.type="k8s_container"',
        'resource.labels.cluster_name="tpus"',
        'resource.labels.namespace_name="team-a"',
        'labels."k8s-pod/posttrain_dev/job"="llama"',
    ):
        assert line in query
    assert 'resource.labels.pod_name=~"^llama-slice-0-0-"' in unquote(shown.cloud_logs_of_rank)
    assert shown.console.endswith("/clusters/details/us-east5/tpus/details?project=my-project")


@pytest.mark.parametrize(
    ("accelerator", "rank", "pod"),
    [
        ({"type": "v6e-16"}, 3, "llama-slice-0-3-"),
        ({"type": "v6e-16", "slices": 2}, 5, "llama-slice-1-1-"),
        ({"type": "tpu7x-16"}, 3, "llama-slice-0-1-"),
    ],
)
def test_every_rank_has_a_link_to_its_logs(accelerator: dict[str, object], rank: int, pod: str) -> None:
    settings = Settings(gke_project="my-project", gke_location="us-east5", gke_cluster="tpus")
    layout = layout_of(parse_job(job_manifest(accelerator=accelerator, training={"batchSize": 32})), settings)
    link = rank_logs_link(links(layout).cloud_logs_of_rank, layout, rank)
    lines = unquote(link.partition("query=")[2].partition("?project=")[0]).split("\n")
    assert f'resource.labels.pod_name=~"^{pod}"' in lines
    wanted = ['resource.labels.container_name="trainer-1"'] if accelerator["type"] == "tpu7x-16" else []
    assert [line for line in lines if "container_name" in line] == wanted
    assert rank_logs_link(links(layout).cloud_logs_of_rank, layout, 0).startswith(
        "https://console.cloud.google.com/logs/"
    )
    with pytest.raises(ValueError, match=f"rank 99: the job has ranks 0 to {layout.processes - 1}"):
        rank_logs_link(links(layout).cloud_logs_of_rank, layout, 99)


def test_without_a_cloud_there_are_no_links_to_it() -> None:
    shown = links(layout_of(parse_job(job_manifest()), Settings()))
    assert (shown.cloud_logs, shown.console) == ("", "")
    assert shown.logs == "ptctl workload logs llama -n team-a"
