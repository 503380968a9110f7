#!/usr/bin/env bash
# A Cloud TPU VM from creation to deletion. Each command is printed before it runs; see usage below.
set -euo pipefail

usage() {
  cat <<'TEXT'
usage: scripts/tpu_vm.sh COMMAND --name NAME --zone ZONE [OPTION ...] [-- ARGUMENT ...]

  create   make the TPU VM             [--accelerator_type v4-8] [--runtime_version V] [--spot]
  setup    copy and install this repository on all workers  [--data DIR] [--nfs HOST:/SHARE]
  run      start the same command on all workers: python -m rose_jax.main ARGUMENT ... --distributed  [--detach] [--mirror URL]
  sweep    one run per chip of worker 0: python -m rose_jax.sweep ARGUMENT ...  [--detach] [--mirror URL]
  logs     follow the log of a detached run on worker 0
  stop     send SIGTERM to a detached run or sweep: it saves and exits; the same command continues it
  fetch    copy a run's folder from worker 0 into ./runs    [--run NAME] [--from DIR] [--with_checkpoints]
  delete   delete the TPU VM and its disk (gcloud asks first)

  --project P            the Google Cloud project; default: gcloud's own
  --accelerator_type T   v4-8, v5litepod-8, v6e-8, ...; default v4-8
  --runtime_version V    default: the one Google names for JAX on that type
  --spot                 cheaper, may be preempted: run again what was interrupted
  --data DIR             a folder of prepared data; it becomes ~/rose_jax_data on every worker
  --nfs HOST:/SHARE      mounted at /mnt/rose_jax on every worker: slices of several hosts need a shared workdir
  --mirror URL           gs://BUCKET/FOLDER: keep a copy of the run, and take it back on a VM that has none
  --detach               the run outlives the connection; its log is ~/rose_jax/run.log on each worker
  --run NAME             the run's folder, below --from; default: of the run that was started last
  --from DIR             on the worker; default ~/rose_jax/runs and, without --run, /mnt/rose_jax/runs as well
  --with_checkpoints     fetch them too (about 50 MB for each task)
  --dry_run              print the commands and run none

example:
  scripts/tpu_vm.sh create --name rose --zone us-central2-b
  scripts/tpu_vm.sh setup  --name rose --zone us-central2-b --data ~/rose_jax_data
  scripts/tpu_vm.sh run    --name rose --zone us-central2-b -- --config configs/cifar100_cold10.py
  scripts/tpu_vm.sh sweep  --name rose --zone us-central2-b -- --config configs/cifar100_cold10.py --seeds 0,1,2,3
  scripts/tpu_vm.sh fetch  --name rose --zone us-central2-b
  scripts/tpu_vm.sh delete --name rose --zone us-central2-b
TEXT
}

readonly REMOTE=rose_jax # the repository's folder in the worker's home
readonly SHARED=/mnt/rose_jax # where setup mounts --nfs
readonly COMMANDS="create setup run sweep logs stop fetch delete"

main() {
  case "${1:-}" in
    "" | -h | --help | help) usage && exit 0 ;;
  esac
  command="$1"
  [[ " $COMMANDS " == *" $command "* ]] || fail "unknown command '$command'. Commands: ${COMMANDS// /, }."
  shift
  parse_options "$@"
  check_options
  cd "$(dirname "${BASH_SOURCE[0]}")/.."
  where=(--zone="$zone")
  [[ -z $project ]] || where+=(--project="$project")
  "do_$command"
}

do_create() {
  local options=(--accelerator-type="$accelerator_type" --version="$runtime_version")
  [[ -z $spot ]] || options+=(--spot)
  tpu create "$name" "${options[@]}"
}

do_setup() {
  show mkdir -p build
  show tar --exclude=__pycache__ -czf build/rose_jax.tar.gz \
    README.md configs pyproject.toml requirements.lock rose_jax scripts
  copy_to_workers build/rose_jax.tar.gz
  # The VM's own Python may be too old; uv brings one along. The lock file decides every version.
  on_workers all "mkdir -p $REMOTE && tar -xzf rose_jax.tar.gz -C $REMOTE && cd $REMOTE \
&& python3 -m pip install --quiet --user uv && ([ -x .venv/bin/python ] || python3 -m uv venv --python 3.11 .venv) \
&& python3 -m uv pip install --python .venv/bin/python --constraint requirements.lock --editable '.[tpu,gcs]'"
  if [[ -n $data ]]; then
    show tar -czf build/rose_jax_data.tar.gz -C "$data" .
    copy_to_workers build/rose_jax_data.tar.gz
    on_workers all "mkdir -p rose_jax_data && tar -xzf rose_jax_data.tar.gz -C rose_jax_data"
  fi
  if [[ -n $nfs ]]; then
    on_workers all "sudo apt-get -qq install -y nfs-common && sudo mkdir -p $SHARED \
&& (mountpoint -q $SHARED || sudo mount -t nfs -o hard $(quote "$nfs") $SHARED)"
  fi
}

do_run() {
  start_on all rose_jax.main "${arguments[@]}" --distributed
}

do_sweep() {
  start_on 0 rose_jax.sweep "${arguments[@]}"
}

start_on() { # all|N MODULE ARGUMENT ...
  local workers="$1" start words=(-m "${@:2}")
  [[ -z $mirror ]] || words+=(--mirror="$mirror")
  start="$(quote .venv/bin/python "${words[@]}")"
  if [[ -n $detach ]]; then
    # The pid file holds the run itself (exec), so that `stop` signals it and nothing else.
    start="nohup bash -c $(quote "echo \$\$ > run.pid; exec $start") > run.log 2>&1 < /dev/null &"
    # A second one would take the pid file and the log from the first. The pid may be another's after a reboot.
    on_workers "$workers" "cd $REMOTE && if [ -e run.pid ] && [ \"\$(readlink /proc/\$(cat run.pid)/cwd)\" = \"\$(pwd -P)\" ]; then \
echo 'a run is going on here already: wait for it, or stop it first' >&2; exit 1; fi"
    on_workers "$workers" "cd $REMOTE && { $start }"
  else
    on_workers "$workers" "cd $REMOTE && exec $start"
  fi
}

do_logs() {
  on_workers 0 "tail -n 100 -F $REMOTE/run.log"
}

do_stop() {
  on_workers all "[ ! -e $REMOTE/run.pid ] || kill -TERM \$(cat $REMOTE/run.pid)" # a sweep is on worker 0 alone
}

do_fetch() {
  local pack=(tar -czf rose_jax_results.tar.gz)
  [[ -n $with_checkpoints ]] || pack+=(--exclude=checkpoints)
  if [[ -n $run_name ]]; then
    on_workers 0 "$(quote "${pack[@]}" -C "${from:-$REMOTE/runs}" "$run_name")"
  else
    # The run that was started last: each start writes its config.json.
    local places="$REMOTE/runs/*/config.json $SHARED/runs/*/config.json"
    [[ -z $from ]] || places="$(quote "$from")/*/config.json"
    on_workers 0 "newest=\$(ls -t $places 2> /dev/null | head -n 1); [ -n \"\$newest\" ] || \
{ echo $(quote "error: no run in ${from:-$REMOTE/runs}: run something first, or give --from") >&2; exit 1; }; run=\$(dirname \"\$newest\") && \
$(quote "${pack[@]}") -C \"\$(dirname \"\$run\")\" \"\$(basename \"\$run\")\" && echo \"fetching \$run\""
  fi
  show mkdir -p build runs
  tpu scp "$name:rose_jax_results.tar.gz" build/rose_jax_results.tar.gz --worker=0
  show tar -xzf build/rose_jax_results.tar.gz -C runs
}

do_delete() {
  tpu delete "$name"
}

# --- what they are made of ---

tpu() { # VERB ARGUMENT ...
  local verb="$1"
  shift
  show gcloud compute tpus tpu-vm "$verb" "$@" "${where[@]}"
}

on_workers() { # all|N COMMAND-LINE
  tpu ssh "$name" --worker="$1" --command="$2"
}

copy_to_workers() { # FILE, into the home folder
  tpu scp "$1" "$name:" --worker=all
}

show() {
  echo "+ $(quote "$@")"
  [[ -n $dry_run ]] || "$@"
}

quote() { # words that a shell reads back as they are, and a person too
  local word line="" escaped="'\\''"
  for word in "$@"; do
    [[ $word =~ ^[-A-Za-z0-9_./:=@%+,]+$ ]] || word="'${word//\'/$escaped}'"
    line+="$word "
  done
  printf '%s\n' "${line% }"
}

fail() {
  echo "error: $* See scripts/tpu_vm.sh --help." >&2
  exit 2
}

parse_options() {
  name="" zone="" project="" accelerator_type=v4-8 runtime_version="" spot="" data="" nfs="" detach="" mirror=""
  run_name="" from="" with_checkpoints="" dry_run=""
  arguments=()
  while (($#)); do
    case "$1" in
      --) shift && arguments=("$@") && return ;;
      --*=*) set -- "${1%%=*}" "${1#*=}" "${@:2}" && continue ;;
    esac
    case "$1" in
      --spot) spot=1 ;;
      --detach) detach=1 ;;
      --with_checkpoints) with_checkpoints=1 ;;
      --dry_run) dry_run=1 ;;
      --name | --zone | --project | --accelerator_type | --runtime_version | --data | --nfs | --mirror | --run | --from)
        [[ -n ${2:-} && ${2:-} != --* ]] || fail "$1 needs a value."
        case "$1" in
          --run) run_name="$2" ;;
          *) printf -v "${1#--}" '%s' "$2" ;;
        esac
        shift
        ;;
      *) fail "unknown option '$1'. Arguments of the run itself come after --." ;;
    esac
    shift
  done
}

check_options() {
  [[ -n $name ]] || fail "--name is missing."
  [[ $name =~ ^[a-z]([-a-z0-9]*[a-z0-9])?$ ]] ||
    fail "--name '$name' must be lower-case letters, digits and hyphens, beginning with a letter."
  [[ -n $zone ]] || fail "--zone is missing, e.g. --zone us-central2-b."
  [[ $zone =~ ^[a-z]+-[a-z]+[0-9]+-[a-z]$ ]] || fail "--zone '$zone' does not look like us-central2-b."
  [[ ! $accelerator_type =~ ^v5e-([0-9]+)$ ]] ||
    fail "--accelerator_type '$accelerator_type' is called v5litepod-${BASH_REMATCH[1]} by gcloud."
  [[ $accelerator_type =~ ^v[0-9]+[a-z]*-[0-9]+$ ]] ||
    fail "--accelerator_type '$accelerator_type' does not look like v4-8 or v5litepod-8."
  case "$accelerator_type" in
    v5litepod-*) : "${runtime_version:=v2-alpha-tpuv5-lite}" ;;
    v5p-*) : "${runtime_version:=v2-alpha-tpuv5}" ;;
    v6e-*) : "${runtime_version:=v2-alpha-tpuv6e}" ;;
    v2-* | v3-* | v4-*) : "${runtime_version:=tpu-ubuntu2204-base}" ;;
  esac
  [[ $command != create || -n $runtime_version ]] ||
    fail "no runtime version is known for $accelerator_type; give --runtime_version."
  [[ -z $data || -d $data ]] || fail "--data '$data' is not a folder."
  [[ -z $data ]] || data="$(cd "$data" && pwd)"
  [[ -z $nfs || $nfs == ?*:/* ]] || fail "--nfs '$nfs' does not look like HOST:/SHARE."
  [[ -z $mirror || $command == run || $command == sweep ]] || fail "--mirror belongs to 'run' and 'sweep'."
  [[ -z $mirror || $mirror == ?*://?* || $mirror == /* ]] || fail "--mirror '$mirror' does not look like gs://BUCKET/FOLDER."
  case "$command" in
    run | sweep)
      [[ " ${arguments[*]-}" == *" --config"* ]] ||
        fail "nothing to run: give the run's arguments after --, e.g. -- --config configs/cifar100_cold10.py."
      ;;
    fetch)
      [[ $run_name != */* ]] || fail "--run '$run_name' is a folder's name, without slashes; see --from."
      ;;
  esac
  [[ $command == run || $command == sweep || ${#arguments[@]} -eq 0 ]] || fail "arguments after -- belong to 'run' and 'sweep'."
  [[ -n $dry_run ]] || type gcloud > /dev/null 2>&1 || fail "gcloud is not installed (or use --dry_run)."
}

main "$@"
