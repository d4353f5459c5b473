"""The tools for agents behind a protocol: a server on standard input and output, by the package `mcp`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import anyio
from mcp import types
from mcp.server.lowlevel import Server
from mcp.server.stdio import stdio_server

from orchestrator.api.agent_tools import Tool, called, tools_of
from orchestrator.base import __version__
from orchestrator.base.errors import SweepError

_INSTRUCTIONS = (
    "Stability maps of training. `list` names the sweeps; `status` says where the edge is, which setting to take and "
    "what comes next. Cells without a result on every seed are not known: conclude nothing from them. A few seeds tell "
    "no small difference from chance; `compare` says how sure it is."
)


def serve(results: Path, *, allows_run: bool) -> None:
    """Answer one client until it closes standard input. Nothing else may print meanwhile: the protocol is there."""
    server = make_server(tools_of(results, allows_run=allows_run))

    async def run() -> None:
        async with stdio_server() as (incoming, outgoing):
            await server.run(incoming, outgoing, server.create_initialization_options())

    anyio.run(run)


def make_server(tools: dict[str, Tool]) -> Server[Any]:
    """Return the server of ``tools``. One is called at a time, in a thread, so that the protocol goes on."""
    turn = anyio.Lock()

    async def list_tools(context: Any, params: Any) -> types.ListToolsResult:
        return types.ListToolsResult(tools=[_described(tool) for tool in tools.values()])

    async def call_tool(context: Any, params: types.CallToolRequestParams) -> types.CallToolResult:
        try:
            async with turn:
                reply = await anyio.to_thread.run_sync(called, tools, params.name, params.arguments or {})
        except SweepError as error:
            text = types.TextContent(type="text", text=f"error: {error}")
            return types.CallToolResult(content=[text], is_error=True)
        content = types.TextContent(type="text", text=reply.text)
        return types.CallToolResult(content=[content], structured_content=reply.data)

    return Server(
        "sweep",
        version=__version__,
        instructions=_INSTRUCTIONS,
        on_list_tools=list_tools,
        on_call_tool=call_tool,
    )


def _described(tool: Tool) -> types.Tool:
    hints = types.ToolAnnotations(read_only_hint=tool.is_read_only, destructive_hint=False, open_world_hint=False)
    return types.Tool(name=tool.name, description=tool.description, input_schema=dict(tool.schema), annotations=hints)
