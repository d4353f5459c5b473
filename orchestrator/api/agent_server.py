"""The tools for agents behind a protocol: a server on standard input and output, by the package `mcp`."""

from __future__ import annotations

import base64
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import anyio
from mcp import types
from mcp.server.lowlevel import Server
from mcp.server.stdio import stdio_server
from mcp.shared.exceptions import MCPError

from orchestrator.api.agent_resources import KINDS, SCHEME, Kind, address_of, listed_resources, read_resource
from orchestrator.api.agent_tool import Tool, called
from orchestrator.api.agent_tools import tools_of
from orchestrator.base import __version__
from orchestrator.base.errors import SweepError

_Result = TypeVar("_Result")
_INSTRUCTIONS = (
    "Stability maps of training. `list` names the sweeps, whose files and maps are resources; `status` says where the "
    "edge is, which setting to take and what comes next. Cells without a result on every seed are not known: conclude "
    "nothing from them. A few seeds tell no small difference from chance; `compare` says how sure it is."
)


def serve(results: Path, *, allows_run: bool) -> None:
    """Answer one client until it closes standard input. Nothing else may print meanwhile: the protocol is there."""
    server = make_server(tools_of(results, allows_run=allows_run), results)

    async def run() -> None:
        async with stdio_server() as (incoming, outgoing):
            await server.run(incoming, outgoing, server.create_initialization_options())

    anyio.run(run)


def make_server(tools: dict[str, Tool], results: Path) -> Server[Any]:
    """Return the server of ``tools`` and of the sweeps in ``results``.

    One thing is done at a time, in a thread, so that the protocol goes on; what waits for others stands in no way.
    """
    turn = anyio.Lock()

    async def done(act: Callable[..., _Result], *given: Any) -> _Result:
        async with turn:
            return await anyio.to_thread.run_sync(act, *given)

    async def list_tools(context: Any, params: Any) -> types.ListToolsResult:
        return types.ListToolsResult(tools=[_described(tool) for tool in tools.values()])

    async def call_tool(context: Any, params: types.CallToolRequestParams) -> types.CallToolResult:
        call = partial(called, tools, params.name, params.arguments or {})
        waits = params.name in tools and tools[params.name].waits
        try:
            reply = await (anyio.to_thread.run_sync(call, abandon_on_cancel=True) if waits else done(call))
        except SweepError as error:
            text = types.TextContent(type="text", text=f"error: {error}")
            return types.CallToolResult(content=[text], is_error=True)
        content = types.TextContent(type="text", text=reply.text)
        return types.CallToolResult(content=[content], structured_content=reply.data)

    async def list_resources(context: Any, params: types.PaginatedRequestParams | None) -> types.ListResourcesResult:
        found, cursor = await done(listed_resources, results, params.cursor if params is not None else None)
        resources = [_named(name, kind) for name, kind in found]
        return types.ListResourcesResult(resources=resources, next_cursor=cursor)

    async def list_templates(context: Any, params: Any) -> types.ListResourceTemplatesResult:
        return types.ListResourceTemplatesResult(resource_templates=[_template(kind) for kind in KINDS.values()])

    async def read(context: Any, params: types.ReadResourceRequestParams) -> types.ReadResourceResult:
        try:
            kind, content = await done(read_resource, params.uri, results)
        except SweepError as error:
            raise MCPError(types.INVALID_PARAMS, f"error: {error}") from None
        made: types.TextResourceContents | types.BlobResourceContents
        if isinstance(content, str):
            made = types.TextResourceContents(uri=params.uri, mime_type=kind.mime_type, text=content)
        else:
            blob = base64.b64encode(content).decode()
            made = types.BlobResourceContents(uri=params.uri, mime_type=kind.mime_type, blob=blob)
        return types.ReadResourceResult(contents=[made])

    return Server(
        "sweep",
        version=__version__,
        instructions=_INSTRUCTIONS,
        on_list_tools=list_tools,
        on_call_tool=call_tool,
        on_list_resources=list_resources,
        on_list_resource_templates=list_templates,
        on_read_resource=read,
    )


def _named(name: str, kind: Kind) -> types.Resource:
    words = f"{name}: {kind.description}"
    return types.Resource(
        uri=address_of(name, kind.name), name=f"{name}/{kind.name}", description=words, mime_type=kind.mime_type
    )


def _template(kind: Kind) -> types.ResourceTemplate:
    return types.ResourceTemplate(
        uri_template=f"{SCHEME}{{name}}/{kind.name}", name=kind.name, description=kind.description,
        mime_type=kind.mime_type,
    )  # fmt: skip


def _described(tool: Tool) -> types.Tool:
    hints = types.ToolAnnotations(read_only_hint=tool.is_read_only, destructive_hint=False, open_world_hint=False)
    return types.Tool(name=tool.name, description=tool.description, input_schema=dict(tool.schema), annotations=hints)
