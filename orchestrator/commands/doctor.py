"""`sweep doctor`: health checks of the environment and a sweep."""

from __future__ import annotations

from pathlib import Path

from orchestrator.base.errors import EXIT_OK, EXIT_SOME_FAILED
from orchestrator.base.files import check_output
from orchestrator.commands.printing import Answer, written_json
from orchestrator.health import examine_environment, examine_sweep, repair


def doctor(folder: Path | None, results: Path, strict: bool, fix: bool, json_file: Path | None = None) -> Answer:
    """The findings about the environment and the sweep in ``folder``; the exit code is 3 for faults.

    With ``strict`` warnings count too; with ``fix`` it repairs what it can.
    """
    check_output(json_file, "--json")
    findings = list(examine_environment(results))
    if folder is not None:
        findings += examine_sweep(folder)
    for finding in findings:
        yield f"{finding.level:>7}: {finding.text}"
        if finding.remedy:
            yield f"         remedy: {finding.remedy}"
    if fix:
        yield from repair(findings)
    elif any(finding.repair for finding in findings):
        yield "`sweep doctor --fix` repairs what can be repaired"
    content = [
        {"level": one.level, "text": one.text, "remedy": one.remedy, "has_repair": one.repair is not None}
        for one in findings
    ]
    yield from written_json(json_file, {"findings": content})
    bad = ("fault", "warning") if strict else ("fault",)
    return EXIT_SOME_FAILED if any(finding.level in bad for finding in findings) else EXIT_OK
