"""Compare rollway's ring with the limits and with what people use today, in one run on one machine.

    python benches/ring.py [--quick] [--only rollway,memcpy,naive] [--workloads …] [--producers …] [--out DIR]

Every spawned process imports this file again, so it imports nothing before it is known to be the parent; the
run is in `harness.suite`, its contenders are in `harness.registry`, and benches/README.md says how it measures.
"""

if __name__ == "__main__":
    import sys

    from harness.registry import RING
    from harness.suite import main

    sys.exit(main(RING))
