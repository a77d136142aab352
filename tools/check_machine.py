"""Check that this machine has what sparktxlog needs: Python 3.11 or newer, and Java 17 or 21.

Runs with any Python 3 and the standard library, before anything is installed.
"""

import os
import re
import shutil
import subprocess
import sys

PYTHON_WANTED = (3, 11)
JAVA_WANTED = 17


def check_python():
    """Return what is wrong with this interpreter, or an empty text."""
    if sys.version_info < PYTHON_WANTED:
        have = ".".join(str(part) for part in sys.version_info[:3])
        return (
            "Python 3.11 or newer is needed, but %s is %s.\n"
            "  Install it, or name another interpreter: make PYTHON=/path/to/python3.11 …"
        ) % (sys.executable, have)
    return ""


def find_java():
    """Return the path of the java command as Spark will find it, or None."""
    home = os.environ.get("JAVA_HOME")
    if home:
        path = os.path.join(home, "bin", "java")
        return path if os.access(path, os.X_OK) else None
    return shutil.which("java")


def check_java():
    """Return what is wrong with Java, or an empty text."""
    java = find_java()
    hint = (
        "  Install a JDK or JRE 17 (Debian, Ubuntu: apt install openjdk-17-jre-headless; macOS:\n"
        "  brew install openjdk@17) and put its bin directory on PATH or set JAVA_HOME."
    )
    if java is None:
        home = os.environ.get("JAVA_HOME")
        where = "JAVA_HOME=%s has no bin/java" % home if home else "there is no java on PATH"
        return "Java 17 or newer is needed for Spark, but %s.\n%s" % (where, hint)
    try:
        answer = subprocess.run([java, "-version"], capture_output=True, text=True, timeout=60)
    except (OSError, subprocess.TimeoutExpired) as error:
        return "Java cannot be started (%s: %s).\n%s" % (java, error, hint)
    found = re.search(r'version "(\d+)', answer.stderr + answer.stdout)
    if found is None or int(found.group(1)) < JAVA_WANTED:
        first = (answer.stderr + answer.stdout).strip().split("\n")[0] or "no version"
        return "Java 17 or newer is needed for Spark, but %s says: %s\n%s" % (java, first, hint)
    return ""


def main(argv):
    """Print what is missing to stderr and return 1, or return 0."""
    problems = [] if "--java" in argv else [check_python()]
    problems.append(check_java())
    problems = [problem for problem in problems if problem]
    for problem in problems:
        print("sparktxlog: " + problem, file=sys.stderr)
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
