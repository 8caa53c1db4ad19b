"""A worker whose tool `echo_python` returns its text."""

import logging

from toolgate import serve, tool


@tool(permission="{text}")
async def echo_python(text: str) -> str:
    """Returns the text."""
    return text


logging.basicConfig(level=logging.INFO)
serve(echo_python, capacity=64)
