#!/usr/bin/env bash
# All that is to be measured on a GPU, unattended, in at most 40 minutes:
#
#     benchmarks/gpu.sh                                # everything that is not done yet
#     benchmarks/gpu.sh --part step --part rates       # these parts
#     benchmarks/gpu.sh --device cpu --tiny            # a dry run in minutes, without a GPU
#
# Each part has a time limit, writes to OUT/PART.log and leaves OUT/PART.done; the next call skips it.
# Grids go on where they were stopped. A part that fails or takes too long does not stop the others;
# the exit code is then 1. Options: --device cuda|cpu, --out DIR (results/gpu), --part NAME, --tiny.
set -u
cd "$(dirname "$0")/.."
PYTHON=${PYTHON:-.venv/bin/python}
DEVICE=cuda OUT=results/gpu TINY="" PARTS=() NOW=""
# Seconds that each part may take: 40 minutes in all.
declare -A LIMIT=([tests]=300 [resume]=120 [rates]=200 [step]=160 [decode]=150 [grid]=280
  [e07]=330 [e08]=300 [e10]=280 [e12]=280)
ALL=(tests resume rates step decode grid e07 e08 e10 e12)

wrong() { echo "gpu.sh: $1" >&2; exit 2; }
known() { [[ " ${ALL[*]} " == *" $1 "* ]] || wrong "no part '$1'; allowed: ${ALL[*]}"; }

given=("$@")
while [ $# -gt 0 ]; do
  case $1 in
    --device | --out | --part | --now) [ $# -gt 1 ] || wrong "$1 needs a value" ;;
  esac
  case $1 in
    --device) DEVICE=$2; shift 2 ;;
    --out) OUT=$2; shift 2 ;;
    --part) known "$2"; PARTS+=("$2"); shift 2 ;;
    --tiny) TINY=1; shift ;;
    --now) known "$2"; NOW=$2; shift 2 ;;  # of this script alone: a part, under its time limit
    *) wrong "unknown argument '$1'; allowed: --device, --out, --part, --tiny" ;;
  esac
done
case $DEVICE in cuda | cpu) ;; *) wrong "--device $DEVICE; allowed: cuda, cpu" ;; esac
[ ${#PARTS[@]} -gt 0 ] || PARTS=("${ALL[@]}")
export PYTHONPATH=$PWD
mkdir -p "$OUT" || exit 2

ablate() { "$PYTHON" -m llama_ablate "$@"; }
# Trains and reports; runs that collapse are results, too (exit code 1).
train() { ablate run "$@" --device "$DEVICE" --keep-weights none || [ $? -eq 1 ]; }

# Ten million parameters, unless this is a dry run.
MODEL=(dim=384 layers=6 heads=6 context=512) BATCH=32
[ -z "$TINY" ] || MODEL=(dim=24 layers=1 heads=2 context=16) BATCH=4

tests() {
  if [ "$DEVICE" = cuda ]; then "$PYTHON" -m pytest tests/test_cuda.py -q --numprocesses 4
  else "$PYTHON" -m pytest tests/training/test_compute.py -q; fi
}

# A run that was interrupted ends with the bits of one that was not.
resume() {
  local steps=300 file=$OUT/resume.yaml launcher
  [ -z "$TINY" ] || steps=1000
  printf '%s\n' "name: resume" "question: Are the bits the same?" "model: {$(IFS=,; echo "${MODEL[*]/=/: }")}" \
    "train: {steps: $steps, batch: 8, lr: 1.0e-3, evals: 2}" "variants: {design: one-at-a-time}" \
    "seeds: 1" "measure: [perplexity]" > "$file"
  rm -rf "$OUT/whole" "$OUT/stopped"
  ablate run "$file" --results "$OUT/whole" --device "$DEVICE" --workers 1 || return
  # A function in the background would be a shell that takes the signal in its place.
  "$PYTHON" -m llama_ablate run "$file" --results "$OUT/stopped" --device "$DEVICE" --workers 1 \
    --checkpoint-every 0.2 &
  launcher=$!
  for _ in $(seq 1000); do
    compgen -G "$OUT/stopped/resume/working/*/checkpoint-*" > /dev/null && break
    kill -0 $launcher 2> /dev/null || break
    sleep 0.05
  done
  kill -TERM $launcher 2> /dev/null && echo "stopped in the middle"
  wait $launcher
  ablate run "$file" --results "$OUT/stopped" --device "$DEVICE" --workers 1 || return
  "$PYTHON" tests/fsck.py "$OUT/stopped/resume" --against "$OUT/whole/resume"
}

rates() { "$PYTHON" benchmarks/rates.py --device "$DEVICE" ${TINY:+--tiny --rounds 2}; }

# Beside other libraries: they come with the extra `bench`.
step() {
  if ! "$PYTHON" -c "import transformers, x_transformers"; then
    echo "not installed: pip install '.[bench]'"
    [ -n "$TINY" ]  # a dry run goes on without
    return
  fi
  "$PYTHON" benchmarks/training_step.py --device "$DEVICE" \
    ${TINY:+--shape 128x4x256 --precision float32 --rounds 1}
}

decode() {
  "$PYTHON" -m benchmarks.components decode --device "$DEVICE" --dtype bfloat16 --json \
    ${TINY:+--dim 32 --processes 1 --rounds 1 --no-compile}
}

# Sixteen runs of 3 and 10 million parameters, with one, four and eight of them sharing the device.
grid() {
  local file=$OUT/grid.yaml steps=150 context=512 counts="1 4 8" workers began
  local sizes="{dim: 192, layers: 6, heads: 6}, {dim: 384, layers: 6, heads: 6}"
  if [ -n "$TINY" ]; then
    steps=3 context=16 counts=2 sizes="{dim: 16, layers: 1, heads: 2}, {dim: 32, layers: 1, heads: 2}"
  fi
  printf '%s\n' "name: grid" "question: How many tokens a second does a grid train?" \
    "model: {context: $context}" "sizes: {models: [$sizes]}" "variants:" \
    "  axes: {attention: [mqa], norm: [layernorm], feedforward: [gelu]}" \
    "train: {steps: $steps, batch: 16, lr: 1.0e-3, evals: 1}" "seeds: 2" "measure: [kv_cache]" \
    > "$file"
  for workers in $counts; do
    began=$SECONDS
    train "$file" --results "$OUT/grid-$workers" --workers "$workers" || return
    echo "{\"workers\": $workers, \"seconds\": $((SECONDS - began))}"
  done
}

# Claims of feed-forward networks, of their gain over sizes, of norms' places and of positions, at ten
# million parameters: with the suite's files, one rate for all, and fewer seeds than the suite has.
claims() {
  local name=$1 tokens=$2 seeds=3 sizes=()
  shift 2
  [ -z "$TINY" ] || tokens=640 seeds=2
  for size in "${MODEL[@]}"; do sizes+=(--set "model.$size"); done
  train "experiments/claims/$name.yaml" "${sizes[@]}" --set "train.batch=$BATCH" \
    --set train.lr=1.0e-3 --set 'train.branches=[]' --set "train.tokens=$tokens" \
    --set "seeds=$seeds" "$@" --results "$OUT/claims" --workers 4
}
e07() { claims e07 6_000_000 --set 'tune={}' --set race=null; }
# The suite dropped e08, which had not been trained there: SwiGLU beside ReLU at 3, 11 and 24 million.
e08() {
  local dims="192 384 576" models="" beliefs=""
  [ -z "$TINY" ] || dims="12 24 36"
  for dim in $dims; do
    models+="{dim: $dim, heads: 6},"
    beliefs+="{variant: swiglu, direction: better, table: dim $dim heads 6},"
  done
  claims e07 4_000_000 --set 'tune={}' --set race=null --set name=e08_swiglu_scale_ladder \
    --set "question=Does the gain of SwiGLU over ReLU grow with size?" \
    --set 'variants.axes={feedforward: [swiglu]}' --set "hypotheses=[$beliefs]" \
    --set "sizes={models: [$models], lr: inverse-dim}"
}
# Depth is the question: twice as deep, and as many parameters.
e10() {
  local sizes=(--set model.dim=288 --set model.layers=12)
  [ -z "$TINY" ] || sizes=()
  claims e10 4_000_000 --set 'tune={}' "${sizes[@]}"
}
e12() { claims e12 6_000_000; }

if [ -n "$NOW" ]; then
  "$NOW"
  exit
fi
if [ "$DEVICE" = cuda ]; then
  "$PYTHON" -c "import sys, torch; sys.exit(not torch.cuda.is_available())" \
    || wrong "torch sees no CUDA GPU here; --device cpu --tiny is a dry run"
fi
failed=0
[ -z "$TINY" ] || for part in "${ALL[@]}"; do LIMIT[$part]=900; done  # a busy machine is no failure
for part in "${PARTS[@]}"; do
  if [ -e "$OUT/$part.done" ]; then
    echo "$part: done before"
    continue
  fi
  began=$SECONDS
  if timeout --kill-after 20 "${LIMIT[$part]}" bash benchmarks/gpu.sh "${given[@]}" --now "$part" \
    > "$OUT/$part.log" 2>&1; then
    touch "$OUT/$part.done"
    echo "$part: $((SECONDS - began)) s"
  else
    failed=1
    echo "$part: failed or out of time after $((SECONDS - began)) s: see $OUT/$part.log"
  fi
done
exit $failed
