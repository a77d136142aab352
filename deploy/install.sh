#!/usr/bin/env bash
# Install sparktxlog from this source tree: containers and machines get the same layout.
set -eu

usage() {
    cat <<'TEXT'
Usage: deploy/install.sh [--extras LIST] [PREFIX]

Builds the package and installs it with the versions of constraints.txt.
  PREFIX   directory (default: /opt/sparktxlog); gets venv/, jobs/, conf/ and spark-submit.sh
  --extras what the package is for: node, spark, or both as node,spark (default)

Called again, it installs what has changed. With spark, it also fetches Delta's JARs into
PREFIX/ivy, unless SPARKTXLOG_JARS or SPARKTXLOG_IVY says where they are; that needs Java 17.

Environment:
  PYTHON   interpreter to begin with, 3.11 or newer (default: python3)
TEXT
}

extras=node,spark
prefix=/opt/sparktxlog
while [ $# -gt 0 ]; do
    case "$1" in
        -h | --help) usage; exit 0 ;;
        --extras) extras=${2:?--extras needs a list such as node,spark}; shift 2 ;;
        -*) usage >&2; exit 2 ;;
        *) prefix=$1; shift ;;
    esac
done

here=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
python=${PYTHON:-python3}
"$python" -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null || {
    echo "install.sh: $python is no Python 3.11 or newer; name one: PYTHON=… deploy/install.sh" >&2
    exit 1
}
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

[ -x "$prefix/venv/bin/python" ] || "$python" -m venv "$prefix/venv"
pip() { "$prefix/venv/bin/python" -m pip "$@" --quiet --disable-pip-version-check; }
# What builds this package, and PySpark, which comes as source.
pip install --require-hashes --requirement "$here/constraints-build.txt"
# A copy: building writes beside the source.
cp -R "$here/pyproject.toml" "$here/README.md" "$here/LICENSE" "$here/src" "$work"
pip wheel --no-deps --no-build-isolation --wheel-dir "$work/wheel" "$work"
wheel=$(echo "$work"/wheel/sparktxlog-*.whl)
# pip either wants the hash of every requirement or looks at none: first what is needed of
# constraints.txt, then exactly that, with its hashes.
sed '/--hash=/d; s/ *\\$//' "$here/constraints.txt" >"$work/versions.txt"
pip install --dry-run --ignore-installed --no-build-isolation --report "$work/report.json" \
    --constraint "$work/versions.txt" "${wheel}[$extras]"
"$prefix/venv/bin/python" - "$work/report.json" "$here/constraints.txt" >"$work/locked.txt" <<'PYTHON'
import json, re, sys

normal = lambda name: re.sub(r"[-_.]+", "-", name).lower()
with open(sys.argv[1]) as report, open(sys.argv[2]) as constraints:
    needed = {normal(found["metadata"]["name"]) for found in json.load(report)["install"]}
    for block in re.findall(r"^[\w.-]+==.*(?:\n +--hash.*)+\n", constraints.read(), re.MULTILINE):
        if normal(block.partition("==")[0]) in needed:
            sys.stdout.write(block)
PYTHON
pip install --require-hashes --no-deps --no-build-isolation --requirement "$work/locked.txt"
# The same version may be another state of the source.
pip install --no-deps --force-reinstall "$wheel"
pip check >&2

rm -rf "$prefix/jobs" "$prefix/conf"
cp -R "$here/jobs" "$here/conf" "$here/spark-submit.sh" "$prefix"
case ",$extras," in
    *,spark,*)
        [ -n "${SPARKTXLOG_JARS:-}" ] ||
            SPARKTXLOG_IVY=${SPARKTXLOG_IVY:-$prefix/ivy} "$prefix/spark-submit.sh" --resolve
        ;;
esac
echo "sparktxlog is in $prefix: $("$prefix/venv/bin/sparktxlog" --version)"
