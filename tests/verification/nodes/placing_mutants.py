"""Text patches that break a rule of commit tables: the simulation must find each of them (P36).

A process that runs one imports patched copies; nothing of the project is imported here.
"""

from __future__ import annotations

import tempfile
from collections.abc import Mapping
from pathlib import Path

from tests.verification.mutation.isolation import import_patched
from tests.verification.mutation.mutant import Patch

_CATALOG = "src/sparktxlog/runtime/commit_tables/commit_catalog.py"
_PLACER = "src/sparktxlog/runtime/commit_tables/commit_placer.py"
_ARRIVALS = "src/sparktxlog/files/arrivals.py"

#: Name → what it patches.  The names say what a mutant does.
PLACING: Mapping[str, Patch] = {
    "places-before-it-orders": Patch(
        path=_CATALOG,
        old="            content, after = read_new_commit(raw, before, uuid, self._now_ms())\n",
        new="            content, after = read_new_commit(raw, before, uuid, self._now_ms())\n"
        "            place = self._places._version(uuid, proposed.version)\n"
        "            place.exists() or place.write_bytes(raw)\n",
    ),
    "shows-before-it-places": Patch(
        path=_PLACER,
        old="        state = self._states.get(table.uuid)\n"
        "        if state is None or state.version < table.version:\n",
        new="        from dataclasses import replace\n\n"
        "        state = self._states.get(table.uuid)\n"
        "        if state is not None:\n"
        "            last = max(state.version, table.version)\n"
        "            return replace(state, version=last, timestamp=table.timestamp)\n"
        "        if state is None or state.version < table.version:\n",
    ),
    "leaves-versions-out": Patch(
        path=_PLACER,
        old="            return _after(before, content), unsynced | places.publish(",
        new="            if version % 5 == 3:\n"
        "                return _after(before, content), unsynced\n"
        "            return _after(before, content), unsynced | places.publish(",
    ),
    "tells-losers-before-the-winner-is-here": Patch(
        path=_CATALOG,
        old="        if table is not None:\n            await self.ordered(uuid, table.version)\n",
        new="",
    ),
    "tells-200-before-it-places": Patch(
        path=_CATALOG,
        old="        await self._raise_if_lost(uuid, receipt)\n"
        "        return await self.ordered(uuid, proposed.version)\n",
        new="        await self._raise_if_lost(uuid, receipt)\n        return shown\n",
    ),
    "takes-late-for-lost": Patch(
        path=_CATALOG,
        old='    if receipt.outcome != "committed":\n        raise _unknown(receipt)\n',
        new='    if receipt.outcome != "committed":\n'
        '        raise VersionConflictError("lost", transaction_id=receipt.transaction_id)\n',
    ),
    "takes-in-without-a-sync": Patch(
        path=_ARRIVALS,
        old="            sync_or_rewrite(path)\n        return StagedFile(",
        new="        return StagedFile(",
    ),
    "settles-without-a-sync": Patch(
        path=_PLACER,
        old='                await self._base.run_on_files("", self._places.sync, paths)\n',
        new="                await asyncio.sleep(0)\n",
    ),
}


def install(name: str) -> None:
    """Let this process import what a mutant patches from its copy."""
    import_patched((PLACING[name],), Path(tempfile.mkdtemp(prefix="mutant-")))
