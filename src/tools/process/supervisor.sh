# Kills the commands of a service that has died or is frozen. Arguments: the entry (NAME=value) that the environment of
# each of its commands holds; after how many seconds without a word it is frozen and about to lose its lease. Standard
# input: a line now and then; its end means that the service is gone. Linux only: processes are found in /proc.

# Sends SIGKILL to every marked process; fails if there is none.
kill_marked() {
  local environ entries entry found=1
  for environ in /proc/[0-9]*/environ; do
    entries=()
    mapfile -d '' -t entries <"$environ" || continue
    for entry in "${entries[@]}"; do
      [[ $entry == "$marker" ]] || continue
      environ=${environ#/proc/}
      kill -KILL "${environ%/environ}" && found=0
      break
    done
  done
  return "$found"
}

main() {
  marker=$1
  local limit=$2 patience=$2 empty=0
  # The end of its input is the only reason to stop; PIPE comes if the service is gone before it could hear "ready".
  trap '' HUP INT TERM PIPE
  [[ $marker == ?*=?* && -r /proc/self/environ ]] || exit 1
  echo ready

  while true; do
    read -r -t "$patience"
    case $? in
      0) patience=$limit ;;
      1) break ;;
      *)
        kill_marked && echo killed
        patience=1
        ;;
    esac
  done

  # Twice nothing, because a process that was just made gets its environment a moment later.
  until ((empty == 2)); do
    if kill_marked; then empty=0; else empty=$((empty + 1)); fi
    sleep 0.1
  done
}

main "$@"
exit
