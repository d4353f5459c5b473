"""`sweep mcp` over a real pipe, with the client of the package `mcp`."""

import base64
import os
import sys
from pathlib import Path

import pytest
from sweep_cases import ledger_at, map_ledger, sweep_of

from orchestrator.base.files import FROZEN_SWEEP

pytestmark = pytest.mark.agents
QUESTIONS = {"status", "boundary", "recommend", "diagnose", "compare", "map", "locate"}


def served(folder: Path, *options: str):
    """The client of a server on the results in ``folder``."""
    from mcp.client.client import Client
    from mcp.client.stdio import StdioServerParameters, stdio_client

    command = str(Path(sys.executable).with_name("sweep"))
    variables = {key: os.environ[key] for key in ("PATH", "PYTHONPATH", "OMP_NUM_THREADS") if key in os.environ}
    return Client(
        stdio_client(StdioServerParameters(command=command, args=["mcp", *options], cwd=folder, env=variables))
    )


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Results with one sweep, of which the last cell is not trained."""
    sweep = sweep_of("axes: {lr: {log: [1e-3, 1], num: 4}}\ntracking: {enabled: false}\n")
    with ledger_at(tmp_path / "results" / "case") as ledger:
        map_ledger(ledger, sweep, ["stable", "stable", "diverged", "planned"])
    (tmp_path / "results" / "case" / FROZEN_SWEEP).write_text(sweep.text)
    return tmp_path


def test_an_agent_reads_and_is_refused_what_it_must_not_do(folder: Path) -> None:
    import anyio

    async def ask() -> None:
        async with served(folder) as client:
            tools = {tool.name: tool for tool in (await client.list_tools()).tools}
            assert {*tools} >= QUESTIONS
            assert not {"run", "remedy", "cause", "plan"} & {*tools}
            assert all(tool.annotations.read_only_hint for tool in tools.values())
            status = await client.call_tool("status", {"name": "case"})
            assert not status.is_error
            assert status.structured_content["sentence"].startswith("3 of 4 trials over: stable up to lr ")
            for name, arguments in (
                ("status", {"name": "../case"}),
                ("status", {"name": {"a": 1}}),
                ("replay", {"paths": ["/etc/passwd"]}),
                ("watch", {"path": "/etc/passwd"}),
                ("watch", {"path": "-"}),
                ("watch", {"path": "train.log", "run": "touch gone"}),
                ("watch", {"path": "train.log", "seconds": 1e300}),
                ("status", {"name": "x" * 1_000_000}),
                ("__class__", {}),
                ("run", {"name": "case", "trials": 9, "minutes": 1}),
            ):
                refused = await client.call_tool(name, arguments)
                assert refused.is_error, name
                assert refused.content[0].text.startswith("error: ")
            again = await client.call_tool("recommend", {"name": "case", "margin": 2})
            assert not again.is_error, "a refusal ends nothing"

    anyio.run(ask)


def test_an_agent_reads_files_and_maps_as_resources_and_nothing_else(folder: Path) -> None:
    import anyio
    from mcp.shared.exceptions import MCPError

    async def read() -> None:
        async with served(folder) as client:
            listed = {each.uri: each.mime_type for each in (await client.list_resources()).resources}
            assert listed == {
                "sweep://case/sweep.yaml": "application/yaml",
                "sweep://case/map.txt": "text/plain",
                "sweep://case/map.png": "image/png",
            }
            templates = (await client.list_resource_templates()).resource_templates
            assert [each.uri_template for each in templates] == [uri.replace("case", "{name}") for uri in listed]
            (file,) = (await client.read_resource("sweep://case/sweep.yaml")).contents
            assert file.text == (folder / "results" / "case" / FROZEN_SWEEP).read_text()
            (drawing,) = (await client.read_resource("sweep://case/map.txt")).contents
            assert "X diverged" in drawing.text
            (picture,) = (await client.read_resource("sweep://case/map.png")).contents
            assert base64.b64decode(picture.blob).startswith(b"\x89PNG")
            for address in (
                "sweep://../case/map.txt",
                "sweep://..%2Fcase/map.txt",
                "file:///etc/passwd",
                "sweep://case/x",
            ):
                with pytest.raises(MCPError, match="error: "):
                    await client.read_resource(address)
            assert (await client.read_resource("sweep://case/map.txt")).contents, "a refusal ends nothing"

    anyio.run(read)


def test_an_agent_watches_a_log_while_it_asks_other_things(folder: Path) -> None:
    import anyio

    log = folder / "train.log"
    log.write_text("".join(f"step {n} loss {3 - n / 200}\n" for n in range(300)))

    async def watch() -> None:
        async with served(folder) as client, anyio.create_task_group() as tasks:
            found = []

            async def follow() -> None:
                arguments = {"path": "train.log", "seconds": 60, "exit_on": ["nan"]}
                found.append(await client.call_tool("watch", arguments))

            tasks.start_soon(follow)
            await anyio.sleep(3)
            status = await client.call_tool("status", {"name": "case"})
            assert not status.is_error
            assert not found, "the watch goes on"
            with log.open("a") as file:
                file.writelines(f"step {n} loss nan\n" for n in range(300, 340))
            with anyio.fail_after(40):
                while not found:
                    await anyio.sleep(0.2)
            assert not found[0].is_error
            assert found[0].structured_content["alarms"][0]["kind"] == "nan"

    anyio.run(watch)


def test_with_leave_an_agent_trains_within_its_budget(folder: Path) -> None:
    import anyio

    async def train() -> None:
        async with served(folder, "--allow-run") as client:
            refused = await client.call_tool("run", {"name": "case"})
            assert refused.is_error
            run = await client.call_tool("run", {"name": "case", "trials": 4, "minutes": 2})
            assert "exit code 0" in run.content[0].text
            status = await client.call_tool("status", {"name": "case"})
            assert status.structured_content["statuses"] == {"finished": 4}

    anyio.run(train)
