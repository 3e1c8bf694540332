"""Checks the machine code that ptxas made of kernels/cuda/sm90, which no model executes.

    sass_test.py product.fatbin FOLDER...     folders with cuobjdump and nvdisasm, the first one counts

Each kernel multiplies by as many wgmma as a stage has, one after the other without a wait, and keeps its sums in
registers. It loads and sends by TMA, and uses no local memory anywhere. Kernels in clusters load B by multicast, and
their main loop has no barrier of memory.
"""

import collections
import os
import re
import shutil
import subprocess
import sys

TYPES = ("f16_f16_128 f16_f32_128 bf16_bf16_128 bf16_f32_128 f16_f16_256 bf16_bf16_256 f16_f16_256_2 bf16_bf16_256_2 "
         "e4m3_f32_128").split()
KERNELS = [f"agmm_{kind}_{types}" for types in TYPES for kind in ("product", "ring")]
WGMMA_OF_A_STAGE = 4  # 128 bytes of K, 32 each
SHAPES = {"f16": "HGMMA.64x{}x16.F32", "bf16": "HGMMA.64x{}x16.F32.BF16", "e4m3": "QGMMA.64x{}x32.F32.E4M3.E4M3"}
LOCAL = ("LDL", "STL")

Instruction = collections.namedtuple("Instruction", "address name operands")


def disassembled(fatbin, folders):
    """The SASS of all cubins in the file, as text."""
    path = os.pathsep.join(folders)
    tools = [shutil.which(tool, path=path) for tool in ("cuobjdump", "nvdisasm")]
    if None in tools:
        sys.exit(f"no cuobjdump and nvdisasm in {path}; run deploy/install-deps.sh")
    done = subprocess.run([tools[0], "--dump-sass", fatbin], capture_output=True, text=True,
                          env={**os.environ, "NVDISASM_PATH": os.path.dirname(tools[1])})
    if done.returncode != 0:
        sys.exit(f"cuobjdump ended with {done.returncode}: {done.stderr.strip()}")
    return done.stdout


def kernels_in(text):
    """The instructions of each kernel, by its name."""
    line = re.compile(r"^\s+/\*([0-9a-f]{4,})\*/\s+(?:@!?U?P[\dT]+\s+)?([A-Z][\w.]*)([^;]*);", re.MULTILINE)
    found = {}
    for part in text.split("Function : ")[1:]:
        name, _, body = part.partition("\n")
        found[name.strip()] = [Instruction(int(address, 16), *rest) for address, *rest in line.findall(body)]
    return found


def count(instructions, *names):
    """How many instructions have one of these names; a name may go on with modifiers."""
    return sum(one.name == name or one.name.startswith(name + ".") for one in instructions for name in names)


def is_multiply(instruction):
    return instruction.name.startswith(("HGMMA", "QGMMA"))


def main_loop(instructions):
    """The shortest loop around all wgmma: what lies between a branch backwards and its target."""
    products = [one.address for one in instructions if is_multiply(one)]
    loops = []
    for one in instructions:
        target = re.search(r"0x([0-9a-f]+)\s*$", one.operands) if one.name.split(".")[0] == "BRA" else None
        if target and int(target[1], 16) <= products[0] and one.address >= products[-1]:
            loops.append((int(target[1], 16), one.address))
    if not loops:
        return []
    begin, end = min(loops, key=lambda loop: loop[1] - loop[0])
    return [one for one in instructions if begin <= one.address <= end]


def registers_in(operands):
    return {int(number) for number in re.findall(r"(?<![A-Z0-9])R(\d+)", operands)}


def faults(name, instructions):
    """What is wrong with a kernel."""
    _, kind, element, _, columns, *cluster = name.split("_")
    columns, cluster, shape = int(columns), int(cluster[0]) if cluster else 1, SHAPES[element].format(columns)
    loads = 2 if element == "e4m3" else 1 + columns // 64 // cluster  # A, and B in boxes of 64 columns
    wrong = []

    def expect(what, is_so, wanted):
        if is_so != wanted:
            wrong.append(f"{is_so} {what}, not {wanted}")

    products = [one for one in instructions if is_multiply(one)]
    expect("local loads and stores", count(instructions, *LOCAL), 0)
    expect("wgmma", len(products), WGMMA_OF_A_STAGE)
    expect(shape, count(products, shape), WGMMA_OF_A_STAGE)
    expect("loads by TMA", count(instructions, "UTMALDG"), loads)
    expect("loads into a cluster", sum("MULTICAST" in one.name for one in instructions), loads - 1 if cluster > 1 else 0)
    if (count(instructions, "UTMASTG") > 0) != (kind == "ring"):
        wrong.append(f"{count(instructions, 'UTMASTG')} stores by TMA")
    # If ptxas serializes wgmma, each one is a group of its own.
    expect("wgmma that end a group", sum("gsb0" in one.operands for one in products), 1)
    expect("fences before wgmma", count(instructions, "WARPGROUP.ARRIVE"), 1)
    if not products:
        return wrong
    loop = main_loop(instructions)
    if not loop:
        return wrong + ["no loop around the wgmma"]
    expect("barriers of memory in the main loop", count(loop, "MEMBAR"), 0)
    first = min(registers_in(products[0].operands))
    sums = set(range(first, first + columns // 2))
    moved = [f"{one.name}{one.operands.rstrip()}" for one in loop
             if not is_multiply(one) and registers_in(one.operands) & sums]
    if moved:
        wrong.append(f"{len(moved)} instructions of the main loop use the sums: {moved[0]}")
    return wrong


def main():
    fatbin, *folders = sys.argv[1:]
    found = kernels_in(disassembled(fatbin, folders))
    wrong = [f"{name} is not in {fatbin}" for name in KERNELS if name not in found]
    wrong += [f"{name} is not in the list of this test" for name in found if name not in KERNELS]
    print(f"{'kernel':28} instructions  loop  wgmma  TMA loads  stores  local")
    for name in KERNELS:
        all_of_it = found.get(name, [])
        print(f"{name:28} {len(all_of_it):12} {len(main_loop(all_of_it)) if any(map(is_multiply, all_of_it)) else 0:5} "
              f"{sum(map(is_multiply, all_of_it)):6} {count(all_of_it, 'UTMALDG'):10} "
              f"{count(all_of_it, 'UTMASTG'):7} {count(all_of_it, *LOCAL):6}")
        if name in found:
            wrong += [f"{name}: {fault}" for fault in faults(name, all_of_it)]
    if wrong:
        sys.exit("\n".join(wrong))


if __name__ == "__main__":
    main()
