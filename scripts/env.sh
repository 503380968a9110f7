# Sourced by demo and test: makes .venv with the locked versions and this package, once per lock file.
cd "$(dirname "${BASH_SOURCE[0]}")/.."
PYTHON="${PYTHON:-python3}"
LOCK="${LOCK:-requirements.lock}"
VENV="${VENV:-.venv}"
"$PYTHON" -c 'import sys; sys.exit(sys.version_info < (3, 11))' || {
  echo "rose_jax needs Python 3.11 or newer; '$PYTHON' is $("$PYTHON" --version 2>&1). Set PYTHON." >&2
  exit 1
}
stamp="$("$PYTHON" -c 'import hashlib, sys; print(hashlib.sha256(b"".join(open(f, "rb").read() for f in sys.argv[1:])).hexdigest())' "$LOCK" pyproject.toml)"
if [ "$(cat "$VENV/.installed" 2>/dev/null)" != "$stamp" ]; then
  echo "Installing into $VENV (once) ..."
  [ -x "$VENV/bin/python" ] || "$PYTHON" -m venv "$VENV"
  "$VENV/bin/python" -m pip install --quiet --requirement "$LOCK"
  "$VENV/bin/python" -m pip install --quiet --no-deps --editable .
  echo "$stamp" > "$VENV/.installed"
fi
