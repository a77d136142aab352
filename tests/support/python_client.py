"""Calls the catalog's API by PyPI's `unitycatalog-client`, which has packages of its own.

It needs older releases than the project has, so it runs as a program: `python python_client.py URL
TOKEN`, calls as JSON on standard input, what they return on standard output.
"""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

PACKAGES = Path(__file__).parents[2] / ".venv" / "test-catalog-client"
#: Class and method of the client, and what the method is given; a dictionary is a model's fields,
#: with the name of its class as `model`.
Call = tuple[str, Sequence[Any], dict[str, Any]]


def call_all(url: str, token: str, calls: Sequence[Call]) -> list[Any]:
    """Return what each call returns; of one that fails the exception's name, status and code.

    The test is skipped where the client is not installed; a skip fails a run with CI=true.
    """
    if not (PACKAGES / ".installed").exists():
        pytest.skip("unitycatalog-client is not installed: make test does it")
    environ = os.environ | {"PYTHONPATH": str(PACKAGES)}
    command = [sys.executable, "-P", __file__, url, token]
    asked = json.dumps(calls)
    done = subprocess.run(
        command, input=asked, capture_output=True, text=True, env=environ, check=False, timeout=60
    )
    assert done.returncode == 0, done.stderr[-3000:]
    found: list[Any] = json.loads(done.stdout)
    return found


async def _answer(client: Any, call: Call) -> Any:
    from unitycatalog import client as package

    where, given, named = call
    api, method = where.split(".")
    args = [
        getattr(package, one.pop("model"))(**one) if isinstance(one, dict) else one for one in given
    ]
    try:
        found = await getattr(getattr(package, api)(client), method)(*args, **named)
    except package.ApiException as error:
        code = json.loads(error.body or "{}").get("error_code")
        return [type(error).__name__, error.status, code]
    return found.to_dict() if hasattr(found, "to_dict") else found


async def _main(url: str, token: str) -> None:
    from unitycatalog.client import ApiClient, Configuration

    configuration = Configuration(host=f"{url}/api/2.1/unity-catalog")
    async with ApiClient(configuration, "Authorization", f"Bearer {token}") as client:
        found = [await _answer(client, call) for call in json.load(sys.stdin)]
    json.dump(found, sys.stdout, default=str)


if __name__ == "__main__":
    asyncio.run(_main(*sys.argv[1:]))
