"""Tests the parts of the benchmark that need no root: its arithmetic, its shapes and operands, its communication with
ranks, and its output. `harness_test.py --write` writes the golden table again."""

import json
import pathlib
import sys
import tempfile
import unittest
import xml.etree.ElementTree

import numpy

HERE = pathlib.Path(__file__).resolve().parent
sys.path.insert(0, str(HERE))

import bounds  # noqa: E402
import chart  # noqa: E402
import contenders  # noqa: E402
import report  # noqa: E402
import service_figures  # noqa: E402
import service_parts  # noqa: E402
import shapes  # noqa: E402
import sums  # noqa: E402
from ranks import ContenderFailed, Ranks  # noqa: E402

GOLDEN = HERE.parent / "golden/bench"


def canned():
    """A run with given times: 2 hosts, 4096 x 4096 x 512, 4 Gbit/s; the numbers of ANCHORS' table."""
    case = {
        "rate_bits": 4e9,
        "name": "2048x4096x256",
        "m": 4096,
        "n": 512,
        "k": 4096,
        "hosts": 2,
        "samples_us": {
            "agmm auto": [40000, 42000, 41000, 43000, 39000],
            "agmm serial": [58000, 58000, 58000],
            "mpi allgather + gemm": [57500, 57500, 57500],
        },
        "gemm_us": {"B plain": [25000, 24000], "B packed": [21000, 21000]},
        "gather_us": {"mpi": [36100, 36100], "ucx": [36500]},
        "launch_us": {"agmm auto": [100, 120, 110]},
        "c_ns": [0.3, 0.4, 0.5],
        "unfused": ["agmm serial", "mpi allgather + gemm"],
        "notes": {"agmm auto": "ring, 8 chunks a shard"},
    }
    tiny = {
        **case,
        "rate_bits": 2e9,
        "name": "nothing to hide",
        "m": 3,
        "n": 3,
        "k": 16,
        "samples_us": {"agmm auto": [103], "mpi allgather + gemm": [104]},
        "gemm_us": {"B plain": [100]},
        "gather_us": {"mpi": [10]},
        "unfused": ["mpi allgather + gemm"],
        "notes": {},
    }
    tiny["in_a_row"] = {
        "products": 32,
        "samples_us": {"agmm auto": [98, 99, 100], "mpi allgather + gemm": [104, 104, 105]},
        "gemm_us": {"B plain": [96]},
    }
    for one in (case, tiny):
        one["figures"] = bounds.figures(one)
    tiny["in_a_row"]["figures"] = bounds.figures({**tiny, **tiny["in_a_row"]})
    return {
        "schema": "agmm.bench.v1",
        "seed": 7,
        "rounds": 5,
        "hosts": 2,
        "devices": 1,
        "share_cores": False,
        "machine": {
            "cpu": "A CPU & Co",
            "cores": 2,
            "kernel": "6.1",
            "load": 3.0,
            "packages": {"libucx0": "1.13.1"},
            "agmm": "abc",
        },
        "missing": {"torch": "it is not there"},
        "left_out": ["random 1 at 4 Gbit/s: there was no time"],
        "cases": [case, tiny],
    }


class ServiceFigures(unittest.TestCase):
    def test_a_ratio_meets_its_goal_from_there_on(self):
        met = service_parts.ratio_row("upload", "bare stream", 0.9, 0.9, "(1 GB/s)", {"seconds": [1.0]})
        self.assertEqual(
            (met.goal, met.seen, met.met, met.values), ("0.9", "0.90  (1 GB/s)", True, {"ratio": 0.9, "seconds": [1.0]})
        )
        self.assertFalse(service_parts.ratio_row("upload", "bare stream", 0.9, 0.89, "", {}).met)
        self.assertEqual([service_figures.verdict(met._replace(met=m)) for m in (True, False, None)], ["met", "MISSED", ""])

    def test_a_link_that_carries_more_than_its_rate_is_no_measurement(self):
        row = service_parts.link_row(2, 0, 64 << 20, 0.28)
        self.assertEqual((row.met, round(row.values["ratio"], 2)), (True, 0.96))
        with self.assertRaisesRegex(service_parts.ServiceFailed, "3800 MB/s is more than the link carries"):
            service_parts.link_row(2, 0, 38_000_000, 0.01)

    def test_a_job_lasts_from_its_launch_to_its_end(self):
        job = {"start_time": "2026-11-21T19:59:59.999000Z", "end_time": "2026-11-21T20:00:00.250500Z"}
        self.assertAlmostEqual(service_parts.job_us(job), 251_500, delta=1)

    def test_every_part_has_a_name_of_its_own(self):
        self.assertEqual(len(set(service_figures.NAMES)), len(service_parts.PARTS))


class Bounds(unittest.TestCase):
    def test_bytes_are_what_the_busiest_rank_sends_and_receives(self):
        self.assertEqual(bounds.bytes_moved(4096, 4096, 4096, 2), 2 * 2048 * 4096 * 2)
        # 3 hosts, 4 rows: the first has 2, sends them twice and receives 2.
        self.assertEqual(bounds.bytes_moved(4, 300, 10, 3), (2 * 2 + 2) * 10 * 2)

    def test_a_link_carries_one_way(self):
        self.assertAlmostEqual(bounds.link_us(4096, 4096, 4096, 2, 4e9), 2048 * 4096 * 2 * 8 / 4e9 * 1e6)
        # The last of 3 hosts has 1 of 4 rows and receives 3; the first sends 2 rows twice.
        self.assertAlmostEqual(bounds.link_us(4, 300, 10, 3, 1e9), 4 * 10 * 2 * 8 / 1e9 * 1e6)

    def test_the_smaller_operand_is_gathered(self):
        self.assertTrue(bounds.gathers_b(8192, 64, 4096, 2))
        self.assertFalse(bounds.gathers_b(64, 8192, 4096, 2))
        self.assertFalse(bounds.gathers_b(8192, 8192, 64, 2), "blocks of C would be larger than A")
        # To the other of 2 hosts: half of the columns of B, and a quarter of C; the same comes back.
        one_way = (32 * 4096 + 4096 * 32) * 2
        self.assertEqual(bounds.bytes_to_each(8192, 64, 4096, 2), one_way)
        self.assertEqual(bounds.bytes_moved(8192, 64, 4096, 2), 2 * one_way)
        self.assertAlmostEqual(bounds.link_us(8192, 64, 4096, 2, 2e9), one_way * 8 / 2e9 * 1e6)

    def test_figures_are_the_definitions(self):
        f = canned()["cases"][0]["figures"]
        self.assertEqual((f["t_gemm_us"], f["t_gemm_by"]), (21000, "B packed"))
        self.assertEqual((f["t_ag_us"], f["t_ag_by"]), (36100, "mpi"))
        self.assertEqual(f["t_lb_us"], 36100)
        self.assertEqual(f["c_ns"], 0.4)
        self.assertAlmostEqual(f["t_lb_cpu_us"], max(36100, 21000 + 0.4e-3 * 6291456))
        self.assertEqual((f["t_unfused_us"], f["t_unfused_by"]), (57500, "mpi allgather + gemm"))
        auto = f["contenders"]["agmm auto"]
        self.assertEqual(auto["t_us"], 41000)
        self.assertAlmostEqual(auto["r"], 36100 / 41000)
        self.assertAlmostEqual(auto["e"], 1 - 20000 / 36500)
        self.assertAlmostEqual(auto["speedup"], 57500 / 41000)
        self.assertAlmostEqual(auto["spread"], 1000 / 41000)
        self.assertAlmostEqual(f["versus"]["ratio"], 41000 / 57500)

    def test_a_limit_is_the_launch_or_the_larger_term_of_the_bound(self):
        limits = [(270, 110, 40, 80), (400, 110, 80, 80), (90, 0, 80, 80), (90, 0, 40, 80), (70, 0, 40, 80)]
        self.assertEqual([bounds.limited_by(*of) for of in limits], ["launch", "unknown", "link", "cores", "cores"])
        auto = canned()["cases"][0]["figures"]["contenders"]["agmm auto"]
        self.assertEqual((auto["launch_us"], auto["limited_by"]), (110, "link"))

    def test_cases_in_which_another_is_faster_are_listed_with_their_limit(self):
        run = canned()
        case = run["cases"][1]
        case["samples_us"]["agmm auto"], case["launch_us"] = [230], {"agmm auto": [120]}
        case["figures"] = bounds.figures(case)
        lines = [line for line in report.text(run).splitlines() if line.startswith("slower than")]
        self.assertEqual(
            lines,
            [
                "slower than the best other, limited by the launch: nothing to hide at 2 Gbit/s (2.21, the launch 0.120 of"
            ],
        )

    def test_the_wire_time_counts_on_cpus(self):
        case = canned()["cases"][0]
        case["c_ns"] = [3.0]
        self.assertAlmostEqual(bounds.figures(case)["t_lb_cpu_us"], 21000 + 3 * 6291.456)

    def test_overlap_efficiency_needs_something_to_hide(self):
        f = canned()["cases"][1]["figures"]
        self.assertIsNone(f["contenders"]["agmm auto"]["e"])
        self.assertAlmostEqual(f["contenders"]["agmm auto"]["speedup"], 104 / 103)
        self.assertIsNone(f["contenders"]["agmm auto"]["spread"])


    def test_products_in_a_row_have_bounds_of_their_own(self):
        f = canned()["cases"][1]["in_a_row"]["figures"]
        self.assertEqual((f["t_gemm_us"], f["t_ag_us"]), (96, 10))
        self.assertAlmostEqual(f["versus"]["ratio"], 99 / 104)

    def test_a_link_carries_no_more_in_a_row_than_its_rate_and_a_burst(self):
        case = {**canned()["cases"][0], "n": 8192, "gather_us": {"mpi": [1000]}}
        self.assertEqual(bounds.figures(case)["t_ag_us"], 1000)
        f = bounds.figures({**case, "products": 4})
        # 16 MiB a product at 4 Gbit/s, less a quarter of 256 KiB.
        self.assertAlmostEqual(f["t_ag_us"], ((16 << 20) - (64 << 10)) * 8 / 4e9 * 1e6)
        self.assertEqual(f["t_ag_by"], "link")


class Sums(unittest.TestCase):
    def test_an_all_reduce_moves_the_sum_twice(self):
        sent = {form.name: sums.bytes_to_each(form, 8, 6, 4) for form in sums.FORMS}
        self.assertEqual(sent, {"k_gather": 8 * 4 // 2 * 4, "reduce_scatter": 8 * 6 // 2 * 4, "all_reduce": 8 * 6 * 4})

    def test_the_fastest_counts_for_the_bound(self):
        medians = {"t": {"agmm auto": 4000, "MPI": 6000}, "gemm": {"MPI gemm": 2000}, "comm": {"MPI": 1500, "ucx": 1000}}
        row = sums.row("2", sums.FORMS[0], (512, 64, 500), medians, 0.5)
        # 512 KB each way cost 0.512 ms of core time.
        self.assertEqual(row[3:8], ["2.000 MPI", "1.000 ucx", "0.50", "2.512", "4.000"])
        self.assertEqual(row[8:], ["6.000", "0.63", "1.50"])


class Shapes(unittest.TestCase):
    def test_the_suite_is_an_eighth(self):
        by_name = {shape.name: shape for shape in shapes.suite(2)}
        self.assertEqual(by_name["LLaMA-7B"][1:], (1024, 1376, 512))
        self.assertEqual(by_name["LLaMA-3-405B"][1:], (2048, 6656, 2048))
        self.assertEqual(by_name["decode M=1"][1:], (1, 3584, 1024))
        self.assertEqual(by_name["decode M=4097"].m, 513)
        self.assertEqual(by_name["Pallas unit"][1:], (256, 1024, 512))

    def test_the_sums_are_those_that_tune_runs(self):
        self.assertEqual(shapes.SUMS, ((32768, 128, 256), (16384, 256, 1024), (8192, 512, 4096)))
        self.assertEqual([form.shapes for form in sums.FORMS[1:]], [shapes.SUMS, shapes.SUMS])

    def test_a_seed_draws_the_same_shapes(self):
        self.assertEqual(shapes.draw(7, 2, 3), shapes.draw(7, 2, 3))
        self.assertNotEqual(shapes.draw(7, 2, 3), shapes.draw(8, 2, 3))

    def test_a_shape_may_give_the_size_for_each_rank(self):
        self.assertEqual(shapes.parse("2048x4096x256", 3)[1:], (6144, 768, 4096))
        for text in ("2048x4096", "axbxc", "0x1x1"):
            with self.assertRaises(ValueError):
                shapes.parse(text, 2)

    def test_operands_are_those_of_a_fill(self):
        def element(seed, index):  # kernels/base/fill_value.h, one at a time
            mask = (1 << 64) - 1
            z = seed + (index + 1) * 0x9E3779B97F4A7C15 & mask
            z = (z ^ z >> 30) * 0xBF58476D1CE4E5B9 & mask
            z = (z ^ z >> 27) * 0x94D049BB133111EB & mask
            return ((z ^ z >> 31) >> 32) * 9 // (1 << 32) - 4

        values = shapes.integers(5, 7, 11)
        self.assertEqual(values.flatten().tolist(), [element(5, i) for i in range(77)])

    def test_bf16_rounds_to_nearest_even(self):
        # 257 and 259 lie between two bf16 numbers.
        bits = shapes.to_bf16(numpy.array([1, -2, 257, 259, 0], numpy.float32))
        self.assertEqual([hex(b) for b in bits], ["0x3f80", "0xc000", "0x4380", "0x4382", "0x0"])

    def test_every_shard_has_rows_in_the_sample(self):
        self.assertEqual(shapes.sampled_rows(1, 2), [0])
        self.assertLessEqual({0, 258, 259, 516}, set(shapes.sampled_rows(517, 2)))


class TalkingToRanks(unittest.TestCase):
    def ranks(self, folder, script, count=2):
        ranks = Ranks("someone", pathlib.Path(folder) / "ranks", count)
        self.addCleanup(ranks.close)
        for rank in range(count):
            ranks.start(["sh", "-c", script.replace("RANK", str(rank)), "sh", str(ranks.folder)])
        return ranks

    def test_the_slowest_rank_counts(self):
        with tempfile.TemporaryDirectory() as folder:
            ranks = self.ranks(
                folder,
                'exec <"$1/in.RANK" >"$1/out.RANK"; echo ok ready; while read -r line; do echo "ok 1RANK.5 2"; done',
            )
            ranks.ready(30)
            self.assertEqual(ranks.run("x", 2), [11.5, 2.0])

    def test_a_rank_that_ends_is_named(self):
        with tempfile.TemporaryDirectory() as folder:
            ranks = self.ranks(folder, "echo no such library >&2; exit 3")
            with self.assertRaisesRegex(ContenderFailed, "someone has ended with code 3 at `start`.*no such library"):
                ranks.ready(30)

    def test_measurements_agree_within_their_bounds(self):
        def world(link=1.0, memory=20.0, product=100.0, byte_ns=0.5, burst=200):
            device = {"gemm": [{"gflop_per_s": product}], "send_ns_per_byte": byte_ns}
            paths = [
                {"to_node": node, "one_way_gb_per_s": rate, "two_way_gb_per_s": 2 * rate}
                for node, rate in ((0, memory), (1, link))
            ]
            return {"paths": paths, "machine": {"device": device, "between": {"burst_kb": burst}}}

        for other in ({}, {"link": 1.05}, {"memory": 21}, {"product": 105}, {"byte_ns": 0.55}, {"burst": 250}):
            self.assertTrue(contenders.measurements_agree(world(), world(**other)), other)
        for other in ({"link": 2}, {"memory": 40}, {"product": 200}, {"byte_ns": 1}, {"burst": 400}):
            self.assertFalse(contenders.measurements_agree(world(), world(**other)), other)
            of_links = "link" in other or "byte_ns" in other
            self.assertEqual(contenders.measurements_agree(world(), world(**other), True), not of_links, other)

    def test_an_error_is_passed_on(self):
        with tempfile.TemporaryDirectory() as folder:
            ranks = self.ranks(folder, 'exec <"$1/in.RANK" >"$1/out.RANK"; echo error out of memory; read -r line')
            with self.assertRaisesRegex(ContenderFailed, "error out of memory"):
                ranks.ready(30)


class Report(unittest.TestCase):
    maxDiff = None

    def test_the_table_matches_the_golden_file(self):
        self.assertEqual(report.text(json.loads(json.dumps(canned()))), (GOLDEN / "table.txt").read_text())

    def test_the_table_fits_a_terminal(self):
        for line in report.text(canned()).splitlines():
            self.assertLessEqual(len(line), report.WIDTH, line)

    def test_the_chart_is_well_formed(self):
        root = xml.etree.ElementTree.fromstring(chart.svg(canned()))
        self.assertEqual(len(root.findall(".//{*}title")), 5)  # a mark a contender and case


if __name__ == "__main__":
    if sys.argv[1:] == ["--write"]:
        GOLDEN.mkdir(exist_ok=True)
        (GOLDEN / "table.txt").write_text(report.text(json.loads(json.dumps(canned()))))
    else:
        unittest.main()
