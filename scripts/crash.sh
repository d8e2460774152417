#!/usr/bin/env bash
# The long forms of the reliability tests: scripts/crash.sh [RUNS] [SCHEDULES] [MUTATIONS]. Needs scripts/test.sh first.
set -euo pipefail
cd "$(dirname "$0")/.."
tests=build/cpu/tests
MT_CRASH_RUNS=${1:-200} $tests/test_crash --gtest_brief=1 | grep -v '^  '
MT_SCHEDULES=${2:-10000} $tests/test_schedule_fuzz --gtest_brief=1
for t in test_checkpoint test_mutated; do
  MT_MUTATIONS=${3:-10000} $tests/$t --gtest_brief=1 --gtest_filter='Mutated*'
done
