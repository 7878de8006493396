"""Compare rollway over TCP with a raw socket and with what people use today, in one run on one machine, on loopback.

    python benches/net.py [--quick] [--only rollway,loopback,echo] [--workloads …] [--producers …] [--out DIR]

Every spawned process imports this file again, so it imports nothing before it is known to be the parent; the
run is in `harness.suite`, its contenders are in `harness.registry`, and benches/README.md says how it measures.
"""

if __name__ == "__main__":
    import sys

    from harness.registry import NET
    from harness.suite import main

    sys.exit(main(NET))
