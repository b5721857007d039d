"""The doctor's forecasts against what was measured: the rows that are in the repository, and their table."""

import pytest

pytest.importorskip("torch")
pytest.importorskip("optuna")

from bench.doctor import GBPS, MODELS, PAGE, SYSTEMS, TARGET, emulated, read, written_anew
from bench.testbed import crew
from bench.testbed.launch import Launch
from bench.testbed.namespace import is_permitted
from bench.testbed.testbed import Testbed
from legato.doctor.checks import Status
from legato.doctor.examination import Examination, diagnose, examine
from legato.settings import read_settings


def consult(station: crew.Station, launch: Launch) -> Examination:
    with launch.job(station.rank) as job:
        return examine(job, lambda: emulated("alexnet").scaled(bytes_by=0.1))


@pytest.mark.skipif(not is_permitted(), reason="this user may not make network namespaces")
@pytest.mark.usefixtures("forked_hosts")
def test_the_doctor_measures_links_between_hosts() -> None:
    """Shaped to 0.2 Gbit/s, of which headers leave 0.19."""
    with Testbed(hosts=2, gbps=0.2) as testbed:
        launch = Launch(num_workers=2, conductor=testbed.address(0))
        first, second = crew.run(testbed, range(2), consult, launch)
    links = first.links
    assert links is not None
    assert links == second.links
    assert (links.num_hosts, links.num_places, len(links.flows)) == (2, 2, 2)
    assert 0.1 < links.gbps < 0.21
    assert links.engine_gbps is not None
    assert 0 < links.engine_gbps < 0.21
    diagnosis = diagnose(first, read_settings({}))
    names = {check.name: check for check in diagnosis.checks}
    assert "eth0 10.0.0.1 (MTU 1500, used)" in names[f"interfaces of {first.ranks[0].hostname} (rank 0)"].found
    assert names["link of rank 0 to 1"].status is Status.OK
    assert "network" not in names
    assert diagnosis.prognosis is not None
    assert diagnosis.prognosis.model == "alexnet"


def test_every_forecast_of_five_models_and_three_bandwidths_is_within_its_target() -> None:
    rows = read()
    found = {(row.model, row.gbps, row.system) for row in rows}
    assert found == {(model, gbps, system) for model in MODELS for gbps in GBPS for system in SYSTEMS}
    assert max(abs(row.error) for row in rows) <= TARGET


def test_the_page_has_these_rows() -> None:
    assert written_anew(PAGE.read_text(), read()) == PAGE.read_text(), "run python -m bench.doctor --page"
