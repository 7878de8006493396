"""The three benchmarks: the ring, TCP, records. The contenders are in the order of the tables: limits, ours, peers."""

from __future__ import annotations

from contenders.atropos_http import AtroposHttp
from contenders.copy_and_look import CopyAndLook
from contenders.echo import Echo
from contenders.fasterfifo import FasterFifo
from contenders.fasterfifo_records import FasterFifoRecords
from contenders.futex import Futex
from contenders.iceoryx import Iceoryx
from contenders.loop_wakeup import LoopWakeup
from contenders.loopback import Loopback
from contenders.memcpy import Memcpy
from contenders.memcpy_records import MemcpyRecords
from contenders.mpqueue import MpQueue
from contenders.naive import Naive
from contenders.pipe import Pipe
from contenders.proposal import Proposal
from contenders.ray_refs import RayRefs
from contenders.rollway import Rollway
from contenders.rollway_records import RollwayRecords
from contenders.rollway_steps import RollwaySteps
from contenders.rollway_tcp import RollwayTcp
from contenders.skyrl_generate import SkyrlGenerate
from contenders.transfer_queue import TransferQueue
from contenders.zero_copy import ZeroCopy
from contenders.zmq import Zmq
from harness import assembly, bars, forms, memory
from harness.benchmark import Benchmark, Extra
from harness.trajectories import PACED, TRAJECTORIES
from harness.workloads import ENV_STEP, TRAJECTORY, WORKLOADS

OTHER_STEPS = [form for form in forms.STEPS if form != forms.PLAIN]
RING = Benchmark(
    stem="ring",
    title="Ring benchmark",
    purpose="Benchmark the ring beside its limits and its peers.",
    throughput=(
        Memcpy(),
        Rollway("send"),
        *(Rollway("send", form) for form in OTHER_STEPS),
        Rollway("send_many"),
        Rollway("reserve"),
        Naive(),
        Iceoryx("poll"),
        Zmq(),
        Echo(),
        FasterFifo(),
        Pipe(),
        MpQueue(),
    ),
    latency=(
        Futex(),
        Rollway("send"),
        Naive(),
        Iceoryx("spin"),
        Iceoryx("event"),
        Zmq(),
        Echo(),
        FasterFifo(),
        Pipe(),
        MpQueue(),
    ),
    idle=Rollway("send"),
    ratios=bars.ring,
    workloads=WORKLOADS,
    paced=TRAJECTORY,
)
NET = Benchmark(
    stem="net",
    title="Network benchmark",
    purpose="Benchmark rollway over TCP beside its limits and its peers, on loopback.",
    throughput=(
        Loopback("message"),
        Loopback("coalesced"),
        RollwayTcp("send"),
        *(RollwayTcp("send", form) for form in OTHER_STEPS),
        RollwayTcp("send_many"),
        Zmq("tcp"),
        Echo(),
    ),
    latency=(Loopback("message"), RollwayTcp("send"), Zmq("tcp"), Echo()),
    idle=RollwayTcp("send"),
    ratios=bars.net,
    workloads=WORKLOADS,
    paced=TRAJECTORY,
)
RECORDS = Benchmark(
    stem="records",
    title="Records benchmark",
    purpose="Benchmark records beside the limit and beside what LLM trajectories travel by today.",
    throughput=(
        MemcpyRecords(),
        CopyAndLook(),
        RollwayRecords("send"),
        RollwayRecords("send, metadata as bytes"),
        RollwayRecords("send, arrays only"),
        *(RollwayRecords("send, arrays only", form) for form in forms.TRAJECTORIES if form != forms.PLAIN),
        *(RollwaySteps(name) for name, form in forms.STEPS.items() if form.arrange is dict),
        RollwayRecords("send_many, groups of 8"),
        RollwayRecords("send_many, groups of 8, arrays only"),
        ZeroCopy("arrays"),
        ZeroCopy("lists"),
        Proposal("arrays"),
        Proposal("lists"),
        FasterFifoRecords(),
        RayRefs("each"),
        RayRefs("batch"),
        TransferQueue(),
        AtroposHttp(),
    ),
    latency=(
        RollwayRecords("send"),
        RollwayRecords("read_async"),
        LoopWakeup(),
        SkyrlGenerate("resumed"),
        SkyrlGenerate("resumed, since the send"),
        SkyrlGenerate("returned"),
        FasterFifoRecords(),
        RayRefs("each"),
        TransferQueue(),
        AtroposHttp(),
    ),
    idle=RollwayRecords("send"),
    ratios=bars.records,
    workloads={**TRAJECTORIES, ENV_STEP.name: ENV_STEP},
    paced=PACED,
    extras=(
        Extra("memory", memory.CONTENDERS, memory.measure, memory.tabulate),
        Extra("assembly", assembly.CONTENDERS, assembly.measure, assembly.tabulate),
    ),
)
