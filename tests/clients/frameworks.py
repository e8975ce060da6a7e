"""One agent per framework, each as its documentation shows it; run by the Python that has them.

``python frameworks.py NAME ADDRESS QUESTION`` prints what came out as one line of JSON. The agents
have a tool ``search(query)`` and change nothing but the address.
"""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import Callable
from typing import Any, ClassVar

from pydantic import BaseModel

SYSTEM = "Search, then write Answer: and the answer."
FOUND = 'Doc 1(Title: "It") It was directed by Ada.'
QUERY = {"type": "object", "properties": {"query": {"type": "string"}}, "required": ["query"]}
SEARCH: Any = {"type": "function", "function": {"name": "search", "parameters": QUERY}}
AGENTS: dict[str, Callable[[str, str], Any]] = {}


class Person(BaseModel):
    """A person."""

    known: bool


def search(query: str) -> str:
    """Search the documents."""
    return FOUND


def agent(function: Callable[[str, str], Any]) -> Callable[[str, str], Any]:
    AGENTS[function.__name__] = function
    return function


@agent
def openai(address: str, question: str) -> Any:
    """A stream, an object of pydantic, and a forced call; tests/serving/test_turns.py has more."""
    from openai import OpenAI

    client = OpenAI(base_url=f"{address}/v1", api_key="none")
    asked: Any = {"model": "policy", "messages": [{"role": "user", "content": question}]}
    with client.chat.completions.stream(**asked, stream_options={"include_usage": True}) as stream:
        streamed = stream.get_final_completion()
    parsed = client.chat.completions.parse(**asked, response_format=Person)
    forced = client.chat.completions.create(**asked, tools=[SEARCH], tool_choice="required")
    return {
        "usage": streamed.usage is not None and streamed.usage.completion_tokens > 0,
        "known": type(parsed.choices[0].message.parsed.known).__name__,
        "forced": forced.choices[0].message.tool_calls[0].function.name,
    }


@agent
def litellm(address: str, question: str) -> Any:
    """The completion, a forced call and a stream."""
    from litellm import completion

    messages = [{"role": "user", "content": question}]
    asked: Any = {
        "model": "openai/policy",
        "api_base": f"{address}/v1",
        "api_key": "none",
        "messages": messages,
    }
    forced = completion(**asked, tools=[SEARCH], tool_choice="required")
    streamed = [piece.choices[0].delta.content or "" for piece in completion(**asked, stream=True)]
    return {
        "forced": forced.choices[0].message.tool_calls[0].function.name,
        "streamed": "".join(streamed) != "",
    }


@agent
def langchain(address: str, question: str) -> Any:
    """Tools, and structured output by a schema, by a forced call and by JSON."""
    from langchain_core.tools import tool
    from langchain_openai import ChatOpenAI

    model = ChatOpenAI(model="policy", base_url=f"{address}/v1", api_key="none", temperature=0.7)
    messages: list[Any] = [("system", SYSTEM), ("user", question)]
    made = tool(search)
    searching = model.bind_tools([made])
    reply = searching.invoke(messages)
    if reply.tool_calls:
        messages += [reply, *(made.invoke(call) for call in reply.tool_calls)]
        searching.invoke(messages)
    known = {}
    for method in ("json_schema", "function_calling"):
        read = model.with_structured_output(Person, method=method).invoke(question)
        known[method] = type(read.known).__name__
    return {**known, "calls": [call["name"] for call in reply.tool_calls]}


@agent
def smolagents(address: str, question: str) -> Any:
    """Its agent, which sends tool_choice: required, until it calls final_answer."""
    from smolagents import OpenAIModel, Tool, ToolCallingAgent
    from smolagents.memory import ActionStep

    class Search(Tool):
        name = "search"
        description = "Search the documents."
        inputs: ClassVar[dict[str, Any]] = {
            "query": {"type": "string", "description": "What to look for."}
        }
        output_type = "string"

        def forward(self, query: str) -> str:
            return FOUND

    model = OpenAIModel(model_id="policy", api_base=f"{address}/v1", api_key="none")
    made = ToolCallingAgent(tools=[Search()], model=model, max_steps=2, verbosity_level=0)
    made.run(question)
    steps = [step for step in made.memory.steps if isinstance(step, ActionStep)]
    return {"calls": sorted({call.name for step in steps for call in step.tool_calls or ()})}


@agent
def openai_agents(address: str, question: str) -> Any:
    """Its runner over chat completions, an output type, and its default, the Responses API."""
    from agents import (
        Agent,
        OpenAIChatCompletionsModel,
        OpenAIResponsesModel,
        Runner,
        function_tool,
        set_tracing_disabled,
    )
    from openai import AsyncOpenAI, NotFoundError

    @function_tool
    def search(query: str, entities: list[str] | None = None) -> str:
        """Search the documents."""
        return FOUND

    set_tracing_disabled(True)

    async def run() -> Any:
        client = AsyncOpenAI(base_url=f"{address}/v1", api_key="none")
        model = OpenAIChatCompletionsModel("policy", client)
        searching = Agent("Reader", instructions=SYSTEM, tools=[search], model=model)
        ended = await Runner.run(searching, question, max_turns=4)
        typed = Agent("Typed", instructions=SYSTEM, output_type=Person, model=model)
        person = (await Runner.run(typed, question)).final_output
        try:
            await Runner.run(
                Agent("Default", model=OpenAIResponsesModel("policy", client)), question
            )
        except NotFoundError as error:
            default = error.message
        return {
            "ended": type(ended.final_output).__name__,
            "known": type(person.known).__name__,
            "default": default,
        }

    return asyncio.run(run())


@agent
def pydantic_ai(address: str, question: str) -> Any:
    """Its agent with a tool, and an output type in JSON."""
    from pydantic_ai import Agent, NativeOutput
    from pydantic_ai.models.openai import OpenAIChatModel
    from pydantic_ai.providers.openai import OpenAIProvider

    model = OpenAIChatModel(
        "policy", provider=OpenAIProvider(base_url=f"{address}/v1", api_key="none")
    )
    searching = Agent(model, instructions=SYSTEM)
    searching.tool_plain(search)
    ended = searching.run_sync(question)
    typed = Agent(model, output_type=NativeOutput(Person)).run_sync(question)
    return {"ended": type(ended.output).__name__, "known": type(typed.output.known).__name__}


@agent
def mcp(address: str, question: str) -> Any:
    """The tool search of `steep serve`."""
    from mcp import ClientSession
    from mcp.client.streamable_http import streamable_http_client

    async def run() -> Any:
        async with (
            streamable_http_client(f"{address}/mcp") as streams,
            ClientSession(streams[0], streams[1]) as session,
        ):
            await session.initialize()
            tools = sorted(tool.name for tool in (await session.list_tools()).tools)
            found = await session.call_tool("search", {"query": question})
            return {"tools": tools, "error": bool(found.is_error)}

    return asyncio.run(run())


if __name__ == "__main__":
    print(json.dumps(AGENTS[sys.argv[1]](*sys.argv[2:])))
