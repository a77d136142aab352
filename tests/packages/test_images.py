"""The images of deploy/Dockerfile: built, and run with the limits of the compose file."""

from __future__ import annotations

import os

import pytest
from tools import images

import sparktxlog

pytestmark = pytest.mark.packages

#: An image to build on, as `localhost/python:3.11`: a build gets hundreds of megabytes.
BASE = os.environ.get("SPARKTXLOG_TEST_BASE_IMAGE", "")


@pytest.mark.timeout(3600)
def test_node_and_worker_are_built_and_do_their_work() -> None:
    """Ready, ordered, a clean end, the same log after a restart, and applied."""
    if not BASE:
        pytest.skip("SPARKTXLOG_TEST_BASE_IMAGE names no image to build on")
    try:
        builder = images.Builder.found()
    except images.NoBuilderError as error:
        pytest.skip(str(error))
    name = f"localhost/sparktxlog-test:{os.getpid()}"
    try:
        said = images.check_images(builder, name, sparktxlog.__version__, BASE)
    finally:
        for target in images.TARGETS:
            builder.run("image", "rm", "--force", f"{name}-{target}")
    assert said == "positions 2 and 3 ordered, 4 applied"
