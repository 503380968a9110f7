# Sourced by demo, test and prepare_data: makes .venv with the locked versions and this package, once per lock file.
cd "$(dirname "${BASH_SOURCE[0]}")/.."
PYTHON="${PYTHON:-python3}"
LOCK="${LOCK:-requirements.lock}"
VENV="${VENV:-.venv}"
"$PYTHON" -c 'import sys; sys.exit(sys.version_info < (3, 11))' || {
  echo "rose_jax needs Python 3.11 or newer; '$PYTHON' is $("$PYTHON" --version 2>&1). Set PYTHON." >&2
  exit 1
}
stamp="$("$PYTHON" - "$LOCK" pyproject.toml <<'PY'
import hashlib, sys
print(hashlib.sha256(sys.version.encode() + b"".join(open(f, "rb").read() for f in sys.argv[1:])).hexdigest())
PY
)"
if [ "$(cat "$VENV/.installed" 2>/dev/null)" != "$stamp" ]; then
  echo "Installing into $VENV (once) ..." >&2
  "$VENV/bin/python" -m pip --version >/dev/null 2>&1 || "$PYTHON" -m venv --clear "$VENV"
  # pip would compile all that it installs, one file after another, for a third of its time: here all cores compile what runs.
  "$VENV/bin/python" -m pip install --quiet --no-compile --requirement "$LOCK"
  "$VENV/bin/python" -m compileall -q -j 0 -x '/(tests|testing|mypy|pip|setuptools)/' "$VENV/lib" >/dev/null 2>&1 &
  "$VENV/bin/python" -m pip install --quiet --no-deps --editable .
  wait $! || true  # a package may ship templates that are no Python
  echo "$stamp" > "$VENV/.installed"
fi
