"""Read the output of nccl-tests, and ask whether the machine is as fast as it should be."""

import simcoll as sc

LOG = """\
# nThread 1 nGpus 1 minBytes 1024 maxBytes 268435456 step: 4(factor) warmup iters: 5 iters: 20
# Using devices
#  Rank  0 Group  0 Pid  1000 on  node0 device  0 [0x0a] NVIDIA H100 80GB HBM3
#  Rank  1 Group  0 Pid  1001 on  node0 device  1 [0x1a] NVIDIA H100 80GB HBM3
#  Rank  2 Group  0 Pid  1002 on  node0 device  2 [0x2a] NVIDIA H100 80GB HBM3
#  Rank  3 Group  0 Pid  1003 on  node0 device  3 [0x3a] NVIDIA H100 80GB HBM3
#  Rank  4 Group  0 Pid  1004 on  node0 device  4 [0x4a] NVIDIA H100 80GB HBM3
#  Rank  5 Group  0 Pid  1005 on  node0 device  5 [0x5a] NVIDIA H100 80GB HBM3
#  Rank  6 Group  0 Pid  1006 on  node0 device  6 [0x6a] NVIDIA H100 80GB HBM3
#  Rank  7 Group  0 Pid  1007 on  node0 device  7 [0x7a] NVIDIA H100 80GB HBM3
#       size         count      type   redop    root     time   algbw   busbw #wrong     time   algbw   busbw #wrong
#        (B)    (elements)                               (us)  (GB/s)  (GB/s)            (us)  (GB/s)  (GB/s)
        1024           256     float     sum      -1    16.10    0.06    0.11      0    16.10    0.06    0.11      0
        4096          1024     float     sum      -1    16.50    0.25    0.43      0    16.50    0.25    0.43      0
       16384          4096     float     sum      -1    17.40    0.94    1.65      0    17.40    0.94    1.65      0
       65536         16384     float     sum      -1    19.90    3.29    5.76      0    19.90    3.29    5.76      0
      262144         65536     float     sum      -1    20.30   12.91   22.60      0    20.30   12.91   22.60      0
     1048576        262144     float     sum      -1    23.10   45.39   79.44      0    23.10   45.39   79.44      0
     4194304       1048576     float     sum      -1    57.40   73.07  127.88      0    57.40   73.07  127.88      0
    16777216       4194304     float     sum      -1   132.00  127.10  222.43      0   132.00  127.10  222.43      0
    67108864      16777216     float     sum      -1   373.20  179.82  314.69      0   373.20  179.82  314.69      0
   268435456      67108864     float     sum      -1  1349.00  198.99  348.23      0  1349.00  198.99  348.23      0
"""

found = sc.diagnose(LOG, on="hgx-h100", where={"collective": "all_reduce"})
print(found.verdict)
for hypothesis in found["hypotheses"][:3]:
    print(hypothesis["hypothesis"], hypothesis["value"], f"off by {100 * hypothesis['score']:.1f} %")
