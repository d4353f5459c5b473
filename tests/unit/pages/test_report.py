import re
from html.parser import HTMLParser
from pathlib import Path

import pytest
from sweep_cases import finished, ledger_at, map_ledger, record, sweep_of

from orchestrator.answers.audit import AuditAnswer
from orchestrator.base.files import FROZEN_SWEEP, LEDGER
from orchestrator.base.packs import Completed, Report
from orchestrator.driver.facts import driver_facts
from orchestrator.driver.packing import make_packs
from orchestrator.ledger.reader import LedgerReader
from orchestrator.ledger.writer import LedgerWriter
from orchestrator.maps.audit import audit
from orchestrator.maps.cell_map import cell_map
from orchestrator.maps.table import read_table
from orchestrator.mirrors.sweep_records import sweep_record
from orchestrator.pages.report import are_current, existing_exports, export_all, report_html
from orchestrator.surface import fitting
from orchestrator.surface.fitting import fit_surface

GRID = "axes: {lr: {values: [0.1, 0.2]}, eps: {values: [1e-8, 1e-4]}}\n"
HOSTILE = '<script>alert("x")</script>'


class Tags(HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.names: list[str] = []
        self.links: list[str] = []

    def handle_starttag(self, tag: str, attrs) -> None:
        self.names.append(tag)
        self.links += [value for name, value in attrs if name in ("src", "href") and not (value or "").startswith("#")]


def page(folder: Path, sweep_text: str = "name: case\n") -> str:
    with ledger_at(folder) as ledger:
        record(ledger, sweep_of(GRID), ["stable", "diverged", "errored", "planned"])
        ledger.give_up([ledger.trials()[2].trial_id], HOSTILE)
        return report_html(read_table(ledger), cell_map(read_table(ledger)), sweep_text)


def test_the_page_loads_nothing_and_has_the_map_and_the_failures(tmp_path: Path) -> None:
    text = page(tmp_path)
    tags = Tags()
    tags.feed(text)
    assert tags.links == []
    assert tags.names.count("script") == 3, "the data, what is unpacked later, and what draws it"
    assert "default-src 'none'" in text
    for title in ("Boundary", "Recommended setting", "Learning-rate sensitivity", "Early stopping"):
        assert f"<h2>{title}</h2>" in text
    assert "Trials without a result" in text
    assert "lr=0.2 eps=1e-8 seed=0" in text


def test_text_from_configs_and_errors_is_escaped(tmp_path: Path) -> None:
    text = page(tmp_path, f"# {HOSTILE}\n")
    assert HOSTILE not in text
    assert text.count("&lt;script&gt;") == 2
    assert text.count("\\u003cscript\\u003e") == 1, "in the data that scripts read"


def test_the_page_says_what_stopping_early_saved_and_how_often_it_was_wrong(tmp_path: Path) -> None:
    sweep = sweep_of(GRID + "stopping: {audit: 0.5}\nresources: {pack: 4}\n")  # no width that other tests measured
    results = {
        "stable": {},
        "diverged": {"steps_done": 8, "verdict_step": 7},
        "spiked": {"verdict_step": 4, "is_audited": True},
        "stalled": {},
    }
    with ledger_at(tmp_path) as ledger:
        ledger.plan("quadratic", sweep.trials, driver_facts(sweep))
        (pack,) = make_packs(sweep, sweep.trials, 1)
        ledger.start_pack(pack, "test")
        done = tuple(finished(t, *case[:1], **case[1]) for t, case in zip(pack.trial_ids, results.items(), strict=True))
        ledger.record(Report(pack.pack_id, 60, 0, 2.0, finished=done, ending=Completed()))
        text = report_html(read_table(ledger), cell_map(read_table(ledger)), "name: case\n")
        lines = AuditAnswer("", audit(ledger.trials(), 30.0)).lines()
    section = re.search("<h2>Early stopping</h2>\n(.*?)<h2>", text, re.DOTALL).group(1)
    said = re.sub("<[^>]*>", "\n", section)
    assert [line for line in map(str.strip, said.splitlines()) if line] == [line.strip() for line in lines]
    assert "1 of 4 finished trials, which saved 12 of 80 member-steps (15%)" in lines[0]
    assert "1 recovered: 100% (95 % interval 21% to 100%)" in lines[2]


def test_a_page_without_audit_says_how_to_have_one(tmp_path: Path) -> None:
    assert "none was chosen (stopping.audit)" in page(tmp_path)


EXPORTS = ["heatmap.png", "map.csv", "trials.csv", "report.html"]


def exported(folder: Path) -> list[Path]:
    with ledger_at(folder) as ledger:
        record(ledger, sweep_of(GRID), ["stable", "diverged", "stable", "stable"])
    (folder / FROZEN_SWEEP).write_text(sweep_of(GRID).text)
    return export_all(folder)


def test_exports_are_made_again_only_after_something_changed(tmp_path: Path) -> None:
    assert [path.name for path in exported(tmp_path)] == EXPORTS
    assert existing_exports(tmp_path) == [tmp_path / name for name in EXPORTS]
    assert are_current(tmp_path)
    with LedgerWriter(tmp_path / LEDGER) as ledger:
        record(ledger, sweep_of(GRID + "seeds: [1]\n"), ["stable"] * 4)
    assert not are_current(tmp_path)


def test_exports_of_one_ledger_are_the_same_bytes(tmp_path: Path) -> None:
    before = {path.name: path.read_bytes() for path in exported(tmp_path)}
    assert {path.name: path.read_bytes() for path in export_all(tmp_path)} == before


@pytest.mark.slow
def test_picture_answers_and_trackers_share_one_fit_of_scattered_cells(tmp_path: Path, monkeypatch) -> None:
    fits = []
    monkeypatch.setattr(fitting, "fit_surface", lambda *given: fits.append(given) or fit_surface(*given))
    sample = "sample: {method: sobol, num: 48}\naxes: {lr: {log: [1e-3, 1]}, eps: {log: [1e-8, 1e-2]}}\n"
    with ledger_at(tmp_path) as ledger:
        sweep = sweep_of(sample)
        map_ledger(ledger, sweep, ["stable" if trial.cell["lr"] < 0.05 else "diverged" for trial in sweep.trials])
    (tmp_path / FROZEN_SWEEP).write_text(sweep.text)
    assert [path.name for path in export_all(tmp_path)] == EXPORTS
    with LedgerReader(tmp_path / LEDGER) as reader:
        assert "recommended_lr" in " ".join(sweep_record(read_table(reader)).metrics)
    assert len(fits) == 1


def test_a_sweep_without_axes_has_a_report_and_no_map(tmp_path: Path) -> None:
    with ledger_at(tmp_path) as ledger:
        record(ledger, sweep_of("seeds: [0, 1]\n"), ["stable", "diverged"])
    (tmp_path / FROZEN_SWEEP).write_text("name: case\n")
    assert [path.name for path in export_all(tmp_path)] == ["trials.csv", "report.html"]
