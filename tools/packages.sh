# Functions for tools/demo and tools/check: install missing Debian or Ubuntu packages, and build.

BUILD_PACKAGES="g++ cmake ninja-build pkg-config nlohmann-json3-dev libxxhash-dev libfmt-dev libcli11-dev
  libsentencepiece-dev libpcre2-dev libutf8proc-dev libedit-dev libboost-dev zlib1g-dev libssl-dev libhiredis-dev
  libomp-dev libopenblas-dev"

# need PACKAGE...: installs the packages that are missing
need() {
  local missing=() package
  for package in "$@"; do
    dpkg-query -W -f '${Status}' "$package" 2>/dev/null | grep -q 'ok installed' || missing+=("$package")
  done
  [ ${#missing[@]} -eq 0 ] && return 0
  echo "Installing: ${missing[*]}"
  local root=()
  if [ "$(id -u)" -ne 0 ]; then
    command -v sudo >/dev/null ||
      { echo "Not root, and there is no sudo: install these packages by hand." >&2; return 1; }
    root=(sudo)
  fi
  local log
  log=$(mktemp)
  if ! { "${root[@]}" apt-get update -q && "${root[@]}" env DEBIAN_FRONTEND=noninteractive \
         apt-get install -q -y --no-install-recommends "${missing[@]}"; } >"$log" 2>&1 </dev/null; then
    tail -n 20 "$log" >&2
    rm -f "$log"
    echo "apt-get could not install: ${missing[*]}" >&2
    return 1
  fi
  rm -f "$log"
}

# Prints the number of compilers to run at once: one for each processor, as long as the available
# memory has 2 GB for each.
compile_jobs() {
  local processors memory
  processors=$(nproc)
  memory=$(awk '/^MemAvailable:/ {print int($2 / 2000000)}' /proc/meminfo)
  memory=$((memory > 1 ? memory : 1))
  echo $((processors < memory ? processors : memory))
}

# build PRESET [TARGET...]: prints only errors. With KEEP_GOING it compiles the rest after one.
build() {
  local preset=$1 log
  shift
  log=$(mktemp)
  if ! { cmake --preset "$preset" &&
         cmake --build --preset "$preset" --parallel "$(compile_jobs)" ${*:+--target "$@"} \
           ${KEEP_GOING:+-- -k 0}; } >"$log" 2>&1; then
    grep -E 'error|warning|FAILED' -A4 "$log" | head -n 60 >&2 || true  # matches nothing if cmake itself failed
    tail -n 20 "$log" >&2
    rm -f "$log"
    return 1
  fi
  rm -f "$log"
}
