"""A second implementation of the meaning of a plan (kernels/schedule/schedule.h) without any of the
product's code: a search and a simulation. A plan is what `agmmctl plan --json` prints.

A plan is unrolled over three epochs. Waits and lanes must order any two accesses to the same bytes of
which one is a write; one pass over the graph, with a set of ancestors for each event, checks this.
Then every order gives the same bytes, so one order is computed with integers, with other inputs and
overwritten outputs in every epoch: each step must find the blocks that it names, and C must be A * B.
Without a product, B must be A; the ranks that hold parts of an open sum must hold the sum together.
"""
import itertools
import json

import numpy as np

EPOCHS = 3
ALIGN = 128
GARBAGE = 0x5A


class Wrong(Exception):
    """The plan is not right."""


def demand(holds, *words):
    if not holds:
        raise Wrong(" ".join(str(word) for word in words))


class Dtype:
    # Integers as small as the ones here are exact in each of the three types.
    _TYPES = {"f32": np.float32, "bf16": np.float16, "f16": np.float16}

    def __init__(self, name):
        self.numpy = np.dtype(self._TYPES[name])
        self.size = self.numpy.itemsize


def cut(size, parts, part):
    """Part number `part` of range(size), divided into `parts` nearly equal parts, the longer ones first."""
    least, longer = divmod(size, parts)
    begin = part * least + min(part, longer)
    return begin, begin + least + (part < longer)


def up(value, unit):
    return -(-value // unit) * unit


class Plan:
    def __init__(self, text):
        plan = json.loads(text) if isinstance(text, str) else text
        self.steps = [rank["steps"] for rank in plan["ranks"]]
        self.nodes = plan["topology"]["node_of_rank"]
        self.axes = plan["problem"]["mesh"]["axes"]
        self.operands = {operand["name"]: operand for operand in plan["problem"]["operands"]}
        self.names = plan["problem"]["tensors"]  # A, B, C; or A, B without a product
        self.result = self.names[-1]
        self.workspace = plan["workspace_bytes"]

    def shard(self, rank, name):
        """The range of an operand at a rank, as ((first row, end), (first column, end))."""
        operand = self.operands[name]
        return [cut(size, *self.position(rank, axes))
                for size, axes in ((operand["rows"], operand["row_axes"]),
                                   (operand["cols"], operand["col_axes"]))]

    def position(self, rank, axes):
        """The number of positions along the axes, and that of the rank."""
        places = {}
        for axis in reversed(self.axes):
            rank, places[axis["name"]] = divmod(rank, axis["size"])
        parts, part = 1, 0
        for axis in axes:
            count = next(one["size"] for one in self.axes if one["name"] == axis)
            parts, part = parts * count, part * count + places[axis]
        return parts, part

    def open_part(self, rank, name):
        """The number of parts of an operand's open sum, and the one that the rank holds."""
        return self.position(rank, self.operands[name]["open_axes"])

    def buffer_bytes(self, rank, name):
        if name == "workspace":
            return self.workspace
        rows, cols = self.shard(rank, name)
        return (rows[1] - rows[0]) * up((cols[1] - cols[0]) * self.dtype(name).size, ALIGN)

    def dtype(self, name):
        return Dtype(self.operands[name]["dtype"])

    def spans(self, block, place, padded):
        """The bytes of each row, as (begin, end). A write also owns the padding after the last column."""
        rows, cols = block["rows"], block["cols"]
        width = (cols[1] - cols[0]) * Dtype(place["dtype"]).size
        last = (self.operands[block["operand"]]["cols"] if place["buffer"] == "workspace" else
                self.shard(place["rank"], place["buffer"])[1][1])
        for row in range(rows[1] - rows[0]):
            begin = place["offset"] + row * place["pitch"]
            end = begin + width
            yield begin, up(end, ALIGN) if padded and cols[1] == last else end


class Access:
    def __init__(self, plan, write, block, place):
        self.write, self.block, self.place = write, block, place
        self.buffer = (place["rank"], place["buffer"])
        self.bytes = 0  # a bit for each
        spans = list(plan.spans(block, place, padded=write))
        size = plan.buffer_bytes(*self.buffer)
        demand(spans and spans[0][0] >= 0 and spans[-1][1] <= size, "place outside of its buffer:", place)
        for begin, end in spans:
            self.bytes |= (1 << end) - (1 << begin)


def accesses_of(plan, rank, step):
    """The accesses of a step, as [(arrival or None, Access)]."""
    out = []

    def add(write, block, place, arrival=None):
        other = place["rank"]
        demand(other == rank or plan.nodes[other] == plan.nodes[rank] or (write and arrival is not None),
               "rank", rank, "reaches into the memory of rank", other, "on another node")
        if block["rows"][0] < block["rows"][1] and block["cols"][0] < block["cols"][1]:
            out.append((arrival, Access(plan, write, block, place)))

    if step["op"] == "transfer":
        add(False, step["block"], step["from"])
        for i, to in enumerate(step["to"]):
            add(True, step["block"], to, i if to["rank"] != rank else None)
    elif step["op"] == "multiply":
        add(False, step["a"], step["a_place"])
        add(False, step["b"], step["b_place"])
        if step["acc"]:
            add(not step["finish"], step["c"], step["acc"])
        if step["finish"]:
            add(True, step["c"], step["out"])
    elif step["op"] == "reduce":
        for place in step["from"]:
            add(False, step["c"], place)
        if step["acc"]:
            add(not step["finish"], step["c"], step["acc"])
        if step["finish"]:
            add(True, step["c"], step["out"])
    elif step["op"] != "join":
        raise Wrong("a step of an unknown kind: " + step["op"])
    return out


def relay_lanes(rank, steps):
    """Lanes except lane 0 that touch no operand of their rank. Only slots order them with its other lanes."""
    lanes, owning = set(), {0}
    for step in steps:
        lanes.add(step["lane"])
        if step["op"] == "join":
            places = []
        elif step["op"] == "transfer":
            places = [step["from"], *step["to"]]
        elif step["op"] == "reduce":
            places = [*step["from"], step["acc"], step["out"] if step["finish"] else None]
        else:
            places = [step["a_place"], step["b_place"], step["acc"], step["out"] if step["finish"] else None]
        if any(place and place["rank"] == rank and place["buffer"] != "workspace" for place in places):
            owning.add(step["lane"])
    return lanes - owning


class Graph:
    """Events are (kind, rank, step, arrival, epoch). Each is a pair of vertices, its start and its end."""

    def __init__(self, plan):
        self.plan = plan
        self.ends, self.edges = {}, []
        self.accesses = []  # (event, Access)
        self.copies = {}  # the arrivals of a step that does nothing but send
        self._own_accesses = [[accesses_of(plan, rank, step) for step in steps]
                              for rank, steps in enumerate(plan.steps)]
        producers = self._producers()
        for epoch in range(EPOCHS):
            for rank, steps in enumerate(plan.steps):
                self._add_epoch(epoch, rank, steps, producers)
        self._sort()

    def _producers(self):
        producers = {}
        for rank, steps in enumerate(self.plan.steps):
            for s, step in enumerate(steps):
                to = step.get("to", [])
                for i, slot in enumerate(step["signals"]):
                    demand(slot not in producers, "slot", slot, "has two producers")
                    arrives = i < len(to) and to[i]["rank"] != rank
                    producers[slot] = (rank, s, i if arrives else None)
        return producers

    def _event(self, *name):
        if name not in self.ends:
            start = len(self.edges)
            self.edges += [[], []]
            self.ends[name] = (start, start + 1)
            self.edges[start].append(start + 1)
        return self.ends[name]

    def _after(self, first, second):
        """`second` starts when `first` has ended."""
        self.edges[self._event(*first)[1]].append(self._event(*second)[0])

    def _add_epoch(self, epoch, rank, steps, producers):
        environment = ("environment", rank, 0, None, epoch)
        following = ("environment", rank, 0, None, epoch + 1)
        for name in self.plan.names:
            rows, cols = self.plan.shard(rank, name)
            if rows[0] == rows[1] or cols[0] == cols[1]:
                continue
            dtype = self.plan.operands[name]["dtype"]
            pitch = up((cols[1] - cols[0]) * Dtype(dtype).size, ALIGN)
            place = {"rank": rank, "buffer": name, "offset": 0, "pitch": pitch, "dtype": dtype}
            whole = Access(self.plan, True, {"operand": name, "rows": rows, "cols": cols}, place)
            self.accesses.append((environment, whole))
        self._after(environment, following)
        relays = relay_lanes(rank, steps)
        last = {step["lane"]: s for s, step in enumerate(steps)}
        lanes = {}
        for s, step in enumerate(steps):
            event = ("step", rank, s, None, epoch)
            lane = step["lane"]
            if lane in lanes:
                self._after(lanes[lane], event)
            elif lane not in relays:
                self._after(environment, event)
            elif epoch > 0:
                self._after(("step", rank, last[lane], None, epoch - 1), event)
            if lane not in relays:
                self._after(event, following)
            lanes[lane] = event
            gated = [event]
            if step.get("carrier", -1) >= 0:
                gated.append(("step", rank, step["carrier"], None, epoch))
            for wait in step["waits"]:
                slot, lag = wait["slot"], wait["lag"]
                demand(slot in producers, "slot", slot, "has no producer")
                demand(int(slot.split(":")[0]) == rank, "rank", rank, "waits for the slot of another", slot)
                if epoch >= lag:
                    source, index, arrival = producers[slot]
                    for one in gated:
                        self._after(("step", source, index, arrival, epoch - lag), one)
            for i, to in enumerate(step.get("to", [])):
                if to["rank"] != rank:  # the copy starts with the step, and ends by itself
                    arrival = self._event("step", rank, s, i, epoch)
                    self.edges[self._event(*event)[0]].append(arrival[0])
            sends = step.get("to", [])
            copies = [("step", rank, s, i, epoch) for i, to in enumerate(sends) if to["rank"] != rank]
            for arrival, access in self._own_accesses[rank][s]:
                name = ("step", rank, s, arrival, epoch)
                self.accesses.append((name, access))
                if arrival is None and copies and len(copies) == len(sends):
                    self.copies[name] = copies

    def _sort(self):
        missing = [0] * len(self.edges)
        for targets in self.edges:
            for target in targets:
                missing[target] += 1
        self.order = [vertex for vertex, count in enumerate(missing) if count == 0]
        self.before = [0] * len(self.edges)  # a bit for each vertex that comes earlier
        for vertex in self.order:
            for target in self.edges[vertex]:
                self.before[target] |= self.before[vertex] | 1 << vertex
                missing[target] -= 1
                if missing[target] == 0:
                    self.order.append(target)
        demand(len(self.order) == len(self.edges), "steps wait for one another in a circle")

    def ordered(self, first, second):
        """True if `first` has ended when `second` starts. A send has ended when all that it copies has arrived."""
        before = self.before[self.ends[second][0]]
        copies = self.copies.get(first)
        return before >> self.ends[first][1] & 1 or bool(copies) and all(
            before >> self.ends[copy][1] & 1 for copy in copies)

    def check_races(self):
        buffers = {}
        for event, access in self.accesses:
            buffers.setdefault(access.buffer, []).append((event, access))
        for accesses in buffers.values():
            for (x, one), (y, other) in itertools.combinations(accesses, 2):
                # Within an event all is read before it is written.
                if x != y and (one.write or other.write) and one.bytes & other.bytes:
                    demand(self.ordered(x, y) or self.ordered(y, x), x, "and", y, "may both use",
                           one.place, "at once")


class Simulation:
    """Computes one order of a plan without races. Every order gives the same bytes."""

    def __init__(self, plan, seed):
        self.plan = plan
        self.random = np.random.default_rng(seed)
        self.memory = {}
        for rank in range(len(plan.steps)):
            for name in [*plan.names, "workspace"]:
                self.memory[rank, name] = np.full(plan.buffer_bytes(rank, name), GARBAGE, np.uint8)
        self.chip = {}  # by rank and lane: the block and its sum
        self.values = []  # by epoch and operand: its parts, one unless its sum is open
        self.sums = {}  # of the parts of an open result: by epoch and group, and their number

    def inputs(self, epoch):
        while len(self.values) <= epoch:
            values = {}
            for name in self.plan.names[:-1]:
                parts, _ = self.plan.open_part(0, name)
                operand = self.plan.operands[name]
                values[name] = self.random.integers(-2, 3, (parts, operand["rows"], operand["cols"]))
            first, *more = (values[name].sum(axis=0) for name in self.plan.names[:-1])
            values[self.plan.result] = [first @ more[0] if more else first]
            self.values.append(values)
        return self.values[epoch]

    def read(self, block, place):
        memory = self.memory[place["rank"], place["buffer"]]
        dtype = Dtype(place["dtype"]).numpy
        rows = [memory[begin:end].view(dtype) for begin, end in self.plan.spans(block, place, False)]
        return np.array(rows, np.float32)

    def write(self, block, place, values):
        memory = self.memory[place["rank"], place["buffer"]]
        dtype = Dtype(place["dtype"]).numpy
        for row, (begin, end) in zip(values, self.plan.spans(block, place, True)):
            with np.errstate(over="ignore"):  # of a plan that is wrong
                content = row.astype(dtype).tobytes()
            memory[begin:end] = GARBAGE
            memory[begin:begin + len(content)] = np.frombuffer(content, np.uint8)

    def part(self, epoch, block, part=0):
        rows, cols = block["rows"], block["cols"]
        return self.inputs(epoch)[block["operand"]][part][rows[0]:rows[1], cols[0]:cols[1]]

    def check_result(self, rank, epoch, block, place):
        name = self.plan.result
        parts, _ = self.plan.open_part(rank, name)
        others = [axis["name"] for axis in self.plan.axes
                  if axis["name"] not in self.plan.operands[name]["open_axes"]]
        group = (epoch, self.plan.position(rank, others)[1])
        total, count = self.sums.get(group, (0, 0))
        total, count = total + self.read(block, place), count + 1
        self.sums[group] = total, count
        if count == parts:
            demand((total == self.part(epoch, block)).all(),
                   "the result of rank", rank, "is wrong in epoch", epoch)

    def environment(self, rank, epoch):
        """Runs between two epochs: checks the result and overwrites it, and writes the inputs."""
        for name in self.plan.names:
            rows, cols = self.plan.shard(rank, name)
            if rows[0] == rows[1] or cols[0] == cols[1]:
                continue
            dtype = self.plan.operands[name]["dtype"]
            block = {"operand": name, "rows": rows, "cols": cols}
            pitch = up((cols[1] - cols[0]) * Dtype(dtype).size, ALIGN)
            place = {"rank": rank, "buffer": name, "offset": 0, "pitch": pitch, "dtype": dtype}
            if name != self.plan.result:
                self.write(block, place, self.part(epoch, block, self.plan.open_part(rank, name)[1]))
                continue
            if epoch > 0:
                self.check_result(rank, epoch - 1, block, place)
            self.write(block, place, np.full((rows[1] - rows[0], cols[1] - cols[0]), 77))

    def found(self, epoch, block, place):
        values = self.read(block, place)
        parts, _ = self.plan.open_part(place["rank"], block["operand"])
        whole = sum(self.part(epoch, block, part) for part in range(parts))
        demand((values == whole).all(), block, "is not at", place)
        return values

    def multiply(self, rank, epoch, step):
        lane = (rank, step["lane"])
        c = step["c"]
        total = self.found(epoch, step["a"], step["a_place"]) @ self.found(epoch, step["b"], step["b_place"])
        if step["accumulate"] and step["acc"]:
            total += self.read(c, step["acc"])
        elif step["accumulate"]:
            block, on_chip = self.chip.get(lane, (None, None))
            demand(block == c, "rank", rank, "adds to a sum that is not on chip:", c)
            total += on_chip
        self.chip[lane] = (c, total) if not step["finish"] and not step["acc"] else (None, None)
        if step["finish"]:
            self.write(c, step["out"], total)
        elif step["acc"]:
            self.write(c, step["acc"], total)

    def reduce(self, step):
        total = sum(self.read(step["c"], place) for place in step["from"])
        if step["accumulate"]:
            total = self.read(step["c"], step["acc"]) + total
        self.write(step["c"], step["out"] if step["finish"] else step["acc"], total)

    def run(self, graph):
        names = {end: name for name, (_, end) in graph.ends.items()}
        for vertex in graph.order:
            if vertex not in names:
                continue
            kind, rank, s, arrival, epoch = names[vertex]
            if kind == "environment":
                self.environment(rank, epoch)
                continue
            step = self.plan.steps[rank][s]
            if step["op"] == "multiply":
                self.multiply(rank, epoch, step)
            elif step["op"] == "reduce":
                self.reduce(step)
            elif arrival is not None:
                self.write(step["block"], step["to"][arrival], self.read(step["block"], step["from"]))
            else:
                for to in step.get("to", []):
                    if to["rank"] == rank:
                        self.write(step["block"], to, self.read(step["block"], step["from"]))


def check(plan, seed):
    """Raises Wrong if some order of the plan's steps can give a wrong result."""
    graph = Graph(plan)
    graph.check_races()
    Simulation(plan, seed).run(graph)
