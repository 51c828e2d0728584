#!/usr/bin/env bash
# Sets up what the tests need and runs all of them: lint, types, import contracts, tests.
# Needs Python 3.11 or newer and git. Environment: PYTHON (default python3), VENV (default .venv).
set -euo pipefail
cd "$(dirname "$0")/.."
venv=${VENV:-.venv}
[ -x "$venv/bin/python" ] || "${PYTHON:-python3}" -m venv "$venv"
"$venv/bin/python" -m pip install --quiet --upgrade "pip>=25.1"
"$venv/bin/python" -m pip install --quiet --editable . --group dev
export PATH="$PWD/$venv/bin:$PATH"
if [ -x .venv-vllm/bin/python ]; then
  export AUTOTUNE_VLLM_PYTHON="$PWD/.venv-vllm/bin/python"
fi
if [ -x .venv-guidellm/bin/guidellm ]; then
  export AUTOTUNE_GUIDELLM="$PWD/.venv-guidellm/bin/guidellm"
fi
ruff check .
ruff format --check .
mypy
lint-imports
pytest -m "not alone" "$@"
pytest -m alone "$@" || [ $? -eq 5 ] # 5: none of them was asked for
