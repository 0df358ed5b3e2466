#!/usr/bin/env bash
# The whole way, on this computer: profile a small GPT, search for a plan for two processes, train with it.
# Usage: examples/demo.sh [FOLDER OF PYTHON AND CONTRAFLOW] [OUTPUT FOLDER]      (`make demo` does this)
set -euo pipefail
root=$(cd "$(dirname "$0")/.." && pwd)
bin=$(cd "${1:-$root/.venv/bin}" && pwd)
out=${2:-demo-out}
mkdir -p "$out"
cd "$out"

say() { printf '\n\033[1m$ %s\033[0m\n' "$*"; }
contraflow() {
    say contraflow "$@"
    "$bin/contraflow" "$@"
}

contraflow profile gpt-small --micro-batch-size 2 --load 2 --cluster cluster.toml -o model.json
contraflow plan model.json --cluster cluster.toml --micro-batches 8 --optimizer adam --time-limit 20 -o plan.json
contraflow check plan.json
contraflow show plan.json
contraflow execute plan.json --steps 40 --lr 0.001 --trace run.json
contraflow show plan.json --as html --run run.json -o plan.html

printf '\nIn %s: model.json, cluster.toml, plan.json, run.json, plan.html\n' "$out"
