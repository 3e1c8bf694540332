"""Repairs the two defects of JAX's collective matmul in its PTX.

A: all steps of the ring count their arrivals with one semaphore. A CTA that is ahead adds the arrivals of its next
   step, so the sum is reached before the slowest CTA has sent its part of this step. It takes three GPUs or more.
B: the pipeline of a tile ends without waiting for its last stage (delay_release=1), and the next tile of the CTA
   refills that stage while it is still being read.
"""

import re


def only(found, what):
    if len(found) != 1:
        raise ValueError(f"{len(found)} places look like {what}")
    return found[0]


def count_each_step(text, gpus, ctas):
    """Repairs A: step s has the semaphore at 4 * s, and waits for one arrival of each CTA of the neighbour."""
    step = only(re.findall(rf"setp\.ne\.b32\s+%p\d+, (%r\d+), {gpus - 1};", text), "the end of the loop over the steps")
    signals = list(re.finditer(r"(?:@%p\d+ )?red\.release\.sys\.global\.add\.u32 \[(%rd\d+)\], %r\d+;", text))
    polls = list(re.finditer(r"ld\.relaxed\.sys\.global\.b32 (%r\d+), \[(%rd\d+)\];", text))
    if len(signals) != 2 or len(polls) != 2:
        raise ValueError(f"{len(signals)} signals and {len(polls)} polls; the first step and the loop have one of each")
    counts = [only(re.findall(rf"setp\.lt\.u32\s+%p\d+, {poll.group(1)}, (\S+);", text), "the wait for the semaphore")
              for poll in polls]
    if counts[0] != str(ctas):
        raise ValueError(f"the first step waits for {counts[0]} arrivals, and the neighbour has {ctas} CTAs")
    for match, address in ((signals[1], signals[1].group(1)), (polls[1], polls[1].group(2))):
        shifted = match.group(0).replace(f"[{address}]", "[of_step]")
        text = text.replace(match.group(0), f"{{ .reg .b64 of_step; mul.wide.u32 of_step, {step}, 4; "
                                            f"add.s64 of_step, {address}, of_step; {shifted} }}")
    return re.sub(rf"(setp\.lt\.u32\s+%p\d+, {polls[1].group(1)}, )\S+;", rf"\g<1>{ctas};", text)


def meet_between_tiles(text):
    """Repairs B: all threads of the CTA meet at the end of each tile but the last."""
    end_of_tile = r"(mov\.pred\s+%p\d+, 0;\n(?:\s*\.loc[^\n]*\n)*)(\s*@!%p\d+ bra)"
    repaired, places = re.subn(end_of_tile, r"\1\tbar.sync \t0;\n\2", text)
    if places != 2:
        raise ValueError(f"{places} loops over tiles; the first step and the loop over the others have one each")
    return repaired
