"""The fake CUDA driver (fake_cuda.cc) for Python: GPUs' buffers, recorded launches and their runs."""

import ctypes
import dataclasses
import re

import numpy

MULTICAST_BASE = 0x5000_0000_0000


@dataclasses.dataclass(frozen=True)
class Order:
    """In which order a run goes on, and which policy it has."""
    seed: int = 1
    mode: str = "random"
    starved: tuple = (-1, -1)  # GPU and CTA
    strictest: bool = False    # without Policy::store_completion_fences

    def __str__(self):
        starved = f", CTA {self.starved[1]} of GPU {self.starved[0]} starved" if self.starved[0] >= 0 else ""
        return f"{self.mode} {self.seed}{starved}"


@dataclasses.dataclass
class Report:
    """What a run says."""
    stop: str
    findings: list
    instructions: int
    text: str


def parse_report(text):
    stop = re.search(r"^stop: (.*?)(?=^instructions: |\Z)", text, re.M | re.S)
    count = re.search(r"^instructions: (\d+)", text, re.M)
    return Report(stop.group(1).strip() if stop else "",
                  re.findall(r"^finding \(\d+ times\): (.*)", text, re.M), int(count.group(1)) if count else 0,
                  text)


class Model:
    """One for each process."""

    def __init__(self, library):
        self.driver = ctypes.CDLL(library, mode=ctypes.RTLD_GLOBAL)
        self.driver.PtxAllocate.restype = ctypes.c_void_p
        for name in ("PtxRecord", "PtxSaveLaunches", "PtxLoadLaunches"):
            getattr(self.driver, name).restype = ctypes.c_bool
        self.driver.PtxRun.restype = ctypes.c_char_p
        self.multicasts = 0

    def array(self, gpu, shape, kind):
        """An array of zeros in the memory of a GPU, which does not count as written."""
        count = int(numpy.prod(shape)) * numpy.dtype(kind).itemsize
        address = self.driver.PtxAllocate(gpu, ctypes.c_uint64(count))
        if not address:
            raise MemoryError("the addresses of the model's GPUs are in use")
        return numpy.frombuffer((ctypes.c_char * count).from_address(address), kind).reshape(shape)

    def set_written(self, array):
        """The array counts as written by the host, in all runs."""
        self.driver.PtxSetWritten(ctypes.c_void_p(array.ctypes.data), ctypes.c_uint64(array.nbytes))

    def multicast(self, arrays):
        """Returns an address that stands for the same place in all these arrays."""
        address = MULTICAST_BASE + (self.multicasts << 32)
        self.multicasts += 1
        targets = (ctypes.c_uint64 * len(arrays))(*[array.ctypes.data for array in arrays])
        self.driver.PtxAddMulticast(ctypes.c_uint64(address), ctypes.c_uint64(arrays[0].nbytes), targets, len(arrays))
        return address

    def run(self, text, order, resident_ctas=132):
        """Runs the recorded launches with the kernels of this PTX."""
        report = self.driver.PtxRun(text.encode(), ctypes.c_uint64(order.seed), order.mode.encode(), *order.starved,
                                     resident_ctas, ctypes.c_bool(not order.strictest))
        return parse_report(report.decode())
