"""How much memory an allreduce takes beyond the tensor itself.

Two readings, both of the worst rank: the peak of the process's resident memory as the
kernel shows it, in which pages shared by all ranks count in full for each of them; and
the same with such pages split between those that map them, which is what the machine
really has to have.
"""

from __future__ import annotations

from harness import jobs
from harness.aims import MEMORY_PEAK, MEMORY_SHARE, MEMORY_SIZE
from harness.environment import OurBinaries, say
from harness.ground import Layout, this_machine
from harness.report import Report, Row


def memory(report: Report, ours: OurBinaries, ranks: int) -> None:
    """Measure an allreduce over so many ranks and add it to the report."""
    say(f"memory of an allreduce over {ranks} ranks")
    with this_machine() as ground:
        lines = jobs.run_probe(ground, Layout((ranks,)), ours, ["memory", MEMORY_SIZE])
    ranks_lines = [line for line in lines if line["work"] == "memory"]
    peak = max(line["peak"] for line in ranks_lines)
    split = max(line["peak"] - line["shared"] + line["shared_share"] for line in ranks_lines)
    report.rows.append(Row.judge(MEMORY_PEAK, MEMORY_SIZE, peak, MEMORY_SIZE))
    report.rows.append(Row.judge(MEMORY_SHARE, MEMORY_SIZE, split, MEMORY_SIZE))
