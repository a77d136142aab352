#!/usr/bin/env bash
# Start a Spark job with sparktxlog: configuration, package, interpreter and Delta's JARs.
set -eu

usage() {
    cat <<'TEXT'
Usage: ./spark-submit.sh [--print-command] [spark-submit options] JOB.py [job arguments]
       ./spark-submit.sh --resolve

Starts JOB.py with spark-submit, conf/, this package, its interpreter, Delta Lake's JARs and
those of the object stores that --stores of a job or SPARKTXLOG_STORES names.
All other options are spark-submit's own; its exit code is handed through.  What --jars and
--py-files name is added to that.
--print-command shows what would be started; --resolve only fetches the JARs, once.

  ./spark-submit.sh jobs/apply.py --url http://127.0.0.1:7401 --once
  ./spark-submit.sh --master spark://host:7077 jobs/verify.py --url http://host:7401

Environment:
  SPARKTXLOG_PYTHON   interpreter with pyspark (default: .venv/bin/python or venv/bin/python
                      beside this script, else python3)
  SPARKTXLOG_STORES   object stores, comma separated: s3, azure, gcs (default: none)
  AWS_ENDPOINT_URL, AWS_REGION and keys as AWS's own tools take them: where s3 is
  SPARKTXLOG_IVY      cache of the resolved JARs (default: ~/.cache/sparktxlog/ivy)
  SPARKTXLOG_JARS     local JARs, comma separated: nothing is resolved or downloaded
  SPARK_HOME          a Spark installation (default: the one inside the pyspark package)
  SPARK_CONF_DIR      your own Spark configuration; conf/spark-defaults.conf is put on top
  SPARK_LOCAL_IP      address Spark binds to (default for local masters: 127.0.0.1)
  JAVA_HOME           Java 17 or newer (default: java on PATH)

Exit codes: the job's own (0 done, 1 error, 2 usage, 3 lagging, 4 diverged, 5 unreachable,
6 bad configuration); 1 with a message when Spark or the JARs are missing.
TEXT
}

fail() {
    echo "spark-submit.sh: $1" >&2
    shift
    for line in "$@"; do echo "  $line" >&2; done
    exit 1
}

here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)

print_only=false
resolve_only=false
case "${1:-}" in
    "" ) usage >&2; exit 2 ;;
    -h | --help) usage; exit 0 ;;
    --print-command) print_only=true; shift ;;
    --resolve) resolve_only=true; shift ;;
esac

python=${SPARKTXLOG_PYTHON:-}
for own in "$here/.venv/bin/python" "$here/venv/bin/python"; do  # a clone's, an installation's
    [ -n "$python" ] || [ ! -x "$own" ] || python=$own
done
[ -n "$python" ] || python=$(command -v python3) || fail "there is no python3 on PATH" "Set SPARKTXLOG_PYTHON."
command -v "$python" >/dev/null ||
    fail "SPARKTXLOG_PYTHON=$python cannot be run" "Name a Python 3.11 or newer with pyspark."

if [ -n "${SPARK_HOME:-}" ]; then
    spark_home=$SPARK_HOME
else
    spark_home=$("$python" -c 'import importlib.util as u
print((u.find_spec("pyspark") or exit(1)).submodule_search_locations[0])') ||
        fail "$python has no pyspark" "Run: make setup   or: pip install 'sparktxlog[spark]'" \
            "Or point SPARKTXLOG_PYTHON at an interpreter that has it."
fi
[ -x "$spark_home/bin/spark-submit" ] ||
    fail "there is no bin/spark-submit in $spark_home" "Check SPARK_HOME."
export SPARK_HOME=$spark_home
# Delta and connectors have artifacts for each minor version of Spark; the name of a JAR tells which.
core=$(cd "$spark_home/jars" 2>/dev/null && echo spark-core_2.13-*.jar)
spark=${core#spark-core_2.13-}
spark=$(echo "$spark" | cut -d. -f1-2)
case "$spark" in
    4.1 | 4.2) ;;
    *) fail "Spark in $spark_home is ${spark/\**/unknown}, not 4.1 or 4.2" \
        "Run: pip install 'sparktxlog[spark]'   or point SPARK_HOME at such a Spark." ;;
esac

if [ -n "${JAVA_HOME:-}" ]; then java="$JAVA_HOME/bin/java"; else java=java; fi
command -v "$java" >/dev/null ||
    fail "Java was not found ($java)" "Install Java 17 and put it on PATH, or set JAVA_HOME."

export PYSPARK_PYTHON=${PYSPARK_PYTHON:-$python}
export PYSPARK_DRIVER_PYTHON=${PYSPARK_DRIVER_PYTHON:-$python}
# Workers import the package under test, not an older installed one.
[ -d "$here/src/sparktxlog" ] && export PYTHONPATH="$here/src${PYTHONPATH:+:$PYTHONPATH}"

master=${MASTER:-local[*]}
stores=${SPARKTXLOG_STORES:-}
previous=""
job=""
# Of an option that it gets twice spark-submit takes the last one, and a setting loses to an option:
# your JARs and Python files are put together with ours.
jars_given=""
files_given=""
arguments=()
for argument in "$@"; do
    at=$previous
    previous=$argument
    if [ -n "$job" ]; then  # the job's own
        [ "$at" != --stores ] || stores=$stores,$argument
        [ "$argument" = "${argument#--stores=}" ] || stores=$stores,${argument#--stores=}
        arguments+=("$argument")
        continue
    fi
    case "$at" in
        --master) master=$argument ;;
        --jars) jars_given=$jars_given,$argument; continue ;;
        --py-files) files_given=$files_given,$argument; continue ;;
        --conf | -c)
            case "$argument" in
                spark.jars=*) jars_given=$jars_given,${argument#*=} ;;
                spark.submit.pyFiles=*) files_given=$files_given,${argument#*=} ;;
            esac
            ;;
    esac
    case "$argument" in
        --jars | --py-files) continue ;;
        --jars=*) jars_given=$jars_given,${argument#*=}; continue ;;
        --py-files=*) files_given=$files_given,${argument#*=}; continue ;;
        --conf=spark.jars=*) jars_given=$jars_given,${argument#*=*=} ;;
        --conf=spark.submit.pyFiles=*) files_given=$files_given,${argument#*=*=} ;;
        --master=*) master=${argument#--master=} ;;
        *.py) job=$argument ;;
    esac
    arguments+=("$argument")
done

options=()
case "$master" in local*) export SPARK_LOCAL_IP=${SPARK_LOCAL_IP:-127.0.0.1} ;; esac
if [ -n "${SPARK_CONF_DIR:-}" ]; then
    options+=(--load-spark-defaults --properties-file "$here/conf/spark-defaults.conf")
else
    export SPARK_CONF_DIR="$here/conf"
fi

cache=${SPARKTXLOG_IVY:-${XDG_CACHE_HOME:-$HOME/.cache}/sparktxlog/ivy}
# The first line is the JARs; the first start resolves them, later ones need no network.
known=()
$print_only && known=(--known)
found=$("$python" -m sparktxlog.api.spark_jars --spark "$spark" --stores "$stores" "${known[@]}") || exit 1
$resolve_only && exit 0
{
    read -r jars
    options+=(--jars "$jars$jars_given")
    while read -r setting; do options+=(--conf "$setting"); done
} <<<"$found"

# Executors on other machines lack this directory: they get the package as a zip.
case "$master" in
    local | local\[*) ;;
    *)
        mkdir -p "$cache"
        archive=$cache/sparktxlog.zip
        "$python" - "$archive" <<'PYTHON'
import os, pathlib, sys, zipfile
import sparktxlog
root = pathlib.Path(sparktxlog.__file__).parents[1]
part = f"{sys.argv[1]}.{os.getpid()}"
with zipfile.ZipFile(part, "w", zipfile.ZIP_DEFLATED) as archive:
    for path in [root / "pyspark_txlog.py", *sorted((root / "sparktxlog").rglob("*"))]:
        if path.is_file() and "__pycache__" not in path.parts:
            archive.write(path, path.relative_to(root))
os.replace(part, sys.argv[1])
PYTHON
        files_given=,$archive$files_given
        ;;
esac
[ -z "$files_given" ] || options+=(--py-files "${files_given#,}")

if $print_only; then
    printf '%q ' "$SPARK_HOME/bin/spark-submit" "${options[@]}" "${arguments[@]}"
    echo
    exit 0
fi

# Spark merges a Python driver's stderr into its own stdout.  Jobs of this project write to this
# pipe instead, so that stdout has nothing but what they print there.  It ends with Spark, which
# holds its writing end, and is removed once it is empty.
pipe=$(mktemp -d)
mkfifo "$pipe/stderr"
(trap '' INT TERM HUP; cat "$pipe/stderr" >&2; rm -rf "$pipe") 3>&- </dev/null >/dev/null &
exec 3>"$pipe/stderr"
export SPARKTXLOG_STDERR=$pipe/stderr
exec "$SPARK_HOME/bin/spark-submit" "${options[@]}" "${arguments[@]}"
