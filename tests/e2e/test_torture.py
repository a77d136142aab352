"""The short form of `make torture`: half a minute of faults, and every promise is on the disks."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.verification.torture.__main__ import torture

pytestmark = [pytest.mark.e2e, pytest.mark.faults, pytest.mark.slow]


def test_every_promise_is_kept_on_the_disks(tmp_path: Path) -> None:
    acts, found = torture(tmp_path, 0.5, seed=1)
    assert found == []
    assert sum(act.told == "ordered" for act in acts) > 50
