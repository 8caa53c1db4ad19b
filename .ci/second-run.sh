# Sourced by .ci/run.

# Runs a test command, such as `npm test`. Each file that failed runs once more, alone, after the others, and the second run decides:
# a race that shows once in 11,000 tests has to be seen and mended, but must not refuse a change that does not touch it.
# Fails if more than five files of all these commands needed a second run; $second_runs lists them with their first error.
with_second_run() {
  local failed file error
  failed=$(mktemp)
  if TOOLGATE_FAILED_FILES=$failed "$@"; then
    rm "$failed"
    return 0
  fi
  cat "$failed" >>"$second_runs"
  if ! [ -s "$failed" ] || grep -q $'^\t' "$failed"; then
    echo "== failed outside its test files: $*"
    return 1
  fi
  if [ "$(wc -l <"$second_runs")" -gt 5 ]; then
    echo "== more than five test files failed:"
    cat "$second_runs"
    return 1
  fi
  while IFS=$'\t' read -r file error <&3; do
    echo "== SECOND RUN, alone: $file"
    echo "   first error: $error"
    "$@" -- "$file" || return 1
  done 3<"$failed"
  rm "$failed"
}
