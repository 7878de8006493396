"""Compare rollway's records with memcpy and with what LLM trajectories travel by today, in one run on one machine.

    python benches/records.py [--quick] [--only rollway,memcpy,ray] [--workloads …] [--producers …] [--out DIR]

Every spawned process imports this file again, so it imports nothing before it is known to be the parent; the
run is in `harness.suite`, its contenders are in `harness.registry`, and benches/README.md says how it measures.
"""

if __name__ == "__main__":
    import sys

    from harness.registry import RECORDS
    from harness.suite import main

    sys.exit(main(RECORDS))
