"""`make flakes`: runs every test executable and test file again and again, idle and under load, and counts failures.

| Module | What it has |
|---|---|
| `main` | the command line |
| `loop` | the loop that runs one unit after the other |
| `schedule` | how often each unit has to run, and which is next; it only computes |
| `units`, `cargo_tests`, `pytest_files` | what can be run: test executables, and test files in Python |
| `fingerprints` | which contents a run counts for |
| `runs` | one run, with or without load, until it ends or the campaign is stopped |
| `supervise` | the process around a run: its time limit, and what it leaves behind |
| `processes` | what these two need from the kernel |
| `outcomes` | which tests failed, from what a run printed |
| `record` | what is kept: a line for each run, and the logs of failures |
| `report` | the table, the failures, and how far it is to the goal |
"""
