#!/usr/bin/env bash
# All that only a GPU can prove, in at most eight minutes on one GPU, as one table: kernels, the discipline on CUDA, a
# real nvidia-smi. Exits 1 where a row says no. Nothing is installed; what a Python lacks leaves its rows `not run`.
# Usage: benchmarks/gpu_check.sh [PYTHON]    PYTHON: one with a CUDA build of torch (default: python3)
#   DEVICE=cpu rehearses the script where there is no GPU;  KEEP=FOLDER keeps each row's output there
#   WITHIN_S=480 is when it ends at the latest: rows that time is not left for are `no`
set -uo pipefail
python=$(command -v "${1:-python3}") || { echo "no program ${1:-python3}" >&2; exit 2; }
python=$(cd "$(dirname "$python")" && pwd)/$(basename "$python")
cd "$(dirname "$0")/.." || exit 2
device=${DEVICE:-cuda}
within_s=${WITHIN_S:-480} steps=60
[ "$device" = cuda ] || { within_s=${WITHIN_S:-3600} steps=20; }
root=$PWD
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
logs=${KEEP:-$work/logs}
mkdir -p "$logs" "$work/home" "$work/run" "$work/data"
logs=$(cd "$logs" && pwd)
export HOME=$work/home PYTHONPATH=$root PYTHONDONTWRITEBYTECODE=1 CUDA_DEVICE_ORDER=PCI_BUS_ID
export TORCHINDUCTOR_CACHE_DIR=$work/cache/inductor TRITON_CACHE_DIR=$work/cache/triton
recipe=("$root/configs/demo.yaml" "device=$device" "corpus.data_dir=$work/data" corpus.num_prompts=256 verifier.demo.steps=100)
table=()
failed=0
cd "$work/run" || exit 2

row() { # NAME ANSWER SECONDS FIGURE
  table+=("| $1 | $2 | $3 | $4 |")
  echo "$1: $2 ($3 s) $4"
  [ "$2" != no ] || failed=1
}

check() { # NAME LIMIT_S PATTERN COMMAND...: the last line of its output that matches is the row's figure
  local name=$1 limit=$2 pattern=$3 log answer started=$SECONDS left=$((within_s - SECONDS))
  shift 3
  [ "$left" -gt 0 ] || { row "$name" no 0 "no time left of $within_s s"; return; }
  limit=$((limit < left ? limit : left))
  log=$logs/$(tr -c 'a-z0-9\n' - <<<"${name,,}").log
  timeout "$limit" "$@" >"$log" 2>&1 && answer=yes || answer=no
  row "$name" "$answer" "$((SECONDS - started))" "$(grep -aE "$pattern" "$log" | tail -n 1 | tr '|' '/' | cut -c 1-110)"
}

cat >"$work/sees.py" <<'PY'
import sys, torch
assert sys.argv[1] == "cpu" or torch.cuda.is_available(), "torch sees no GPU"
print(torch.__version__, torch.cuda.get_device_name(0) if torch.cuda.is_available() else "cpu", torch.version.cuda)
PY

# Three replicas share the one GPU as threads; a process each would need a GPU each.
check "torch sees the device" 60 . "$python" "$work/sees.py" "$device"
attention=flex
[ "$device" = cuda ] || attention=dense # flex has no backward on the CPU
cases=$root/tests/data/dflash
for case in case1_basic_bs4_d1 case3_tail_bs16_d3; do
  check "golden ${case%%_*}, dense" 60 "tolerance" "$python" -m trainer check "$cases/$case" --device "$device"
done
check "golden case4, $attention, compiled" 150 "tolerance" \
  "$python" -m trainer check "$cases/case4_packed_bs8_d2" --device "$device" --attention "$attention" --compiled
check "prewarm, cold" 180 "start of" "$python" -m trainer prewarm "${recipe[@]}"
check "prewarm, warm: nothing compiled" 90 "start of" "$python" -m trainer prewarm "${recipe[@]}" --require-warm
mv "$work/cache" "$work/moved"
export TORCHINDUCTOR_CACHE_DIR=$work/moved/inductor TRITON_CACHE_DIR=$work/moved/triton
check "prewarm, the cache moved" 90 "start of" "$python" -m trainer prewarm "${recipe[@]}" --require-warm
check "training, sealed" 180 "after training" "$python" -m trainer train "${recipe[@]}" steps=$steps
mv "$work/run/metrics.jsonl" "$logs/metrics.jsonl" 2>/dev/null
rm -rf "${work:?}/run/"*
if [ "$device" = cuda ]; then
  check "training, bfloat16" 120 "after training" "$python" -m trainer train "${recipe[@]}" steps=30 dtype=bfloat16
  rm -rf "${work:?}/run/"*
  check "training, CUDA graphs" 120 "after training" "$python" -m trainer train "${recipe[@]}" steps=30 compile.cuda_graphs=true
  rm -rf "${work:?}/run/"*
fi
check "preflight, processes" 120 "safe" "$python" -m trainer preflight "${recipe[@]}" --nproc 1
check "preflight, three threads" 150 "safe" "$python" -m trainer preflight "${recipe[@]}" --replicas threads --nproc 3

if "$python" -c 'import typer, libtmux, pydantic, rich' 2>/dev/null && command -v tmux >/dev/null; then
  cat >"$work/opsctl.yaml" <<YAML
default_target: here
targets: {here: {host: local, home: $work/home/.opsctl, python: $python}}
jobs:
  falls: {command: [$python, -u, $work/falls.py, $device], env: false, code: false, expect_compiled: true}
YAML
  cat >"$work/falls.py" <<'PY'
import sys, time, torch
from torch.nn.attention.flex_attention import flex_attention
backend = "inductor" if sys.argv[1] == "cuda" else "eager"
attend = torch.compile(flex_attention, dynamic=False, backend=backend)
for step in range(1, 200):
    size = 128 * (1 + step % 12)
    q = torch.randn(1, 4, size, 64, device=sys.argv[1])
    loss = float(attend(q, q, q).square().mean())
    print(f"step {step}/200 loss={loss:.4f}", flush=True)
    time.sleep(0.1)
PY
  cat >"$work/told.sh" <<'SH'
"$1" -m opsctl train start falls --config "$2" || exit 1
"$1" -m opsctl watch falls --fail-fast --json --config "$2"
[ $? = 1 ] # the status of a run that crashed, hung or fell back; the row's figure says which
SH
  check "eager fallback is told" 150 '"verdict": ?"eager_fallback"' bash "$work/told.sh" "$python" "$work/opsctl.yaml"
  log=$logs/eager-fallback-is-told.log
  sees=no
  grep -qE '"used_mib": ?[0-9.]+' "$log" && sees=yes
  [ "$device" = cuda ] || sees="not run"
  row "GPUs by the machine's nvidia-smi" "$sees" 0 "$(grep -oE '"(name|used_mib|power_w)": ?[^,}]+' "$log" | tail -n 3 | paste -sd ' ')"
else
  row "opsctl" "not run" 0 "this Python lacks typer, libtmux, pydantic or rich, or tmux is missing"
fi

printf '\n| check | well | s | figure |\n|---|---|---|---|\n'
printf '%s\n' "${table[@]}"
exit "$failed"
