#!/bin/sh
# Prints the folder for the files of tests: in memory where there is room for them and for the tests, and programs may
# be run there.
# Tests kill processes and never the machine, and a flush to a disk takes milliseconds.
memory=/dev/shm
room=$(df -Pk $memory 2>/dev/null | awk 'NR == 2 {print $4}')
free=$(awk '/^MemAvailable:/ {print $2}' /proc/meminfo 2>/dev/null)
if [ "${room:-0}" -gt 3000000 ] && [ "${free:-0}" -gt 6000000 ] && [ -w $memory ] && ! grep -q " $memory .*noexec" /proc/mounts; then
  echo $memory
else
  echo "${TMPDIR:-/tmp}"
fi
