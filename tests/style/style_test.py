"""Checks the structure of the tree: the includes between folders, small files and functions, and that all sources are
built and all parts of tests run.

Run as a test over the whole repository; the cases in SelfTest prove that each rule can fail.
"""

import ast
import collections
import os
import re
import sys
import unittest

import words

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
FOLDERS = ("client", "daemon", "deploy", "kernels", "proto", "tests")
MAX_LINES = 700
MAX_FUNCTION_LINES = 70

# The folders that each folder may include, besides itself. The longest entry for a folder counts.
ARROWS = {
    "kernels/base": [],
    "kernels/schedule": ["kernels/base"],
    "kernels/predict": ["kernels/schedule", "kernels/base"],
    "kernels/device": ["kernels/schedule", "kernels/base"],
    "kernels/cpu": ["kernels/device", "kernels/schedule", "kernels/base"],
    "kernels/cuda": ["kernels/device", "kernels/schedule", "kernels/base"],
    "proto": [],
    "proto/channel": [],
    "proto/convert": ["proto", "kernels/predict", "kernels/schedule", "kernels/base"],
    # daemon.cc makes all parts, so it may include everything.
    "daemon": [f"daemon/{part}" for part in ("config", "observe", "transport", "link", "sequencer", "measure", "node",
                                               "rpc")] +
              ["proto", "proto/channel", "proto/convert", "kernels/cpu", "kernels/cuda", "kernels/device",
               "kernels/predict", "kernels/base"],
    "daemon/config": ["proto/convert", "kernels/base"],
    "daemon/observe": ["kernels/base"],
    "daemon/transport": ["kernels/device", "kernels/schedule", "kernels/base"],
    "daemon/link": ["daemon/observe", "proto", "proto/channel", "proto/convert", "kernels/base"],
    # The sequencer and the node never include each other: they talk through daemon/link.
    "daemon/sequencer": ["daemon/link", "daemon/config", "daemon/observe", "proto", "proto/convert",
                         "kernels/predict", "kernels/schedule", "kernels/base"],
    "daemon/measure": ["daemon/sequencer", "daemon/link", "daemon/observe", "proto", "proto/convert",
                       "kernels/predict", "kernels/schedule", "kernels/base"],
    "daemon/node": ["daemon/link", "daemon/config", "daemon/observe", "daemon/transport", "proto", "proto/channel",
                    "proto/convert", "kernels/device", "kernels/schedule", "kernels/base"],
    "daemon/rpc": ["daemon/measure", "daemon/sequencer", "daemon/node", "daemon/link", "daemon/observe", "proto", "proto/convert",
                   "kernels/device", "kernels/schedule", "kernels/base"],
    # agmm.h, the library's header.
    "client": [],
    "client/connect": ["proto", "proto/channel", "proto/convert", "kernels/base"],
    "client/files": ["client/connect", "proto", "proto/convert", "kernels/base"],
    "client/trace": ["client/connect", "proto", "proto/convert", "kernels/schedule", "kernels/base"],
    "client/library": ["client", "client/connect", "client/files", "client/trace", "proto", "proto/convert", "kernels/base"],
    "client/ctl": ["client/connect", "client/files", "client/trace", "proto", "proto/convert", "kernels/predict", "kernels/schedule",
                   "kernels/base"],
    "client/examples": ["client"],
}

# Libraries that only some folders may include. Tests may include all of them.
LIBRARIES = [
    (re.compile(r"(cuda|cublas|nccl|nvrtc|cupti)\w*\.h$|cutlass/|cute/"), ("kernels/cuda/",)),
    (re.compile(r"(ucp|uct|ucs)/"), ("daemon/transport/",)),
    (re.compile(r"(grpc|grpcpp|grpc\+\+)/|.*\.grpc\.pb\.h$"),
     ("daemon/rpc/", "daemon/link/", "daemon/main.cc", "client/", "proto/channel/", "proto/convert/",
      # The calls of a node to the sequencer.
      "daemon/node/join.")),
    (re.compile(r"(dnnl|oneapi)\b"), ("kernels/cpu/",)),
]

# Planning and prediction are pure: no threads, no clocks, no I/O.
PURE_FOLDERS = ("kernels/schedule/", "kernels/predict/")
PURE = re.compile(r"absl/(?!synchronization|time|random|debugging|flags)|[a-z_]+$")
IMPURE_STD = {"atomic", "barrier", "chrono", "condition_variable", "filesystem", "fstream",
              "future", "iostream", "latch", "mutex", "random", "semaphore", "shared_mutex",
              "stop_token", "syncstream", "thread"}

# The library's header shows its users nothing but the standard library.
PUBLIC_HEADER = "client/agmm.h"

# Messages elsewhere reach users of the library, too.
COMMAND_LINES = ("client/ctl/", "daemon/main.cc", "daemon/config/", "daemon/rpc/listen.cc")
COMMAND_WORDS = re.compile(r"agmmctl|(^|\W)--[a-z]")

# The head of a scope, whose functions are counted one by one.
SCOPE = re.compile(r'(template <.*> )?(inline )?(namespace|class|struct|union|enum|extern "C")\b')

INCLUDE = re.compile(r'^\s*#\s*include\s*([<"])([^>"]+)[>"]')


def folder_of(path):
    """The entry of ARROWS that `path` belongs to, or None."""
    fitting = [name for name in ARROWS if path.startswith(name + "/")]
    return max(fitting, key=len) if fitting else None


def target_of(included):
    # Headers made from proto/agmm/v1 are included as agmm/v1/job.pb.h.
    return "proto" if included.startswith(("agmm/v1/", "google/rpc/")) else folder_of(included)


def check_include(path, quoted, included, files):
    if path.startswith("tests/"):
        return
    source, target = folder_of(path), target_of(included)
    if target is not None and target != source and target not in ARROWS.get(source, []):
        yield f"{source} may not include {target}"
    if included.startswith("tests/"):
        yield "only tests include tests"
    if quoted and target is None:
        beside = os.path.normpath(os.path.join(os.path.dirname(path), included))
        if beside in files:
            yield f'write "{beside}": includes are rooted at the repository'
    for pattern, places in LIBRARIES:
        if pattern.match(included) and not path.startswith(places):
            yield f"<{included}> belongs to {', '.join(places)} alone"
    if path == PUBLIC_HEADER and not re.fullmatch(r"[a-z_]+", included):
        yield f"{PUBLIC_HEADER} includes the standard library only"
    if path.startswith(PURE_FOLDERS) and target is None:
        if not PURE.match(included) or included in IMPURE_STD:
            yield f"<{included}>: {os.path.dirname(path)} is pure, without threads, clocks and I/O"


def check_file(path, text, files):
    """Yields "path:line: what is wrong"."""
    lines = text.splitlines()
    if len(lines) > MAX_LINES and not path.startswith(("tests/golden/", "tests/bench/results/")):
        yield f"{path}: {len(lines)} lines; past {MAX_LINES} it is asking to be two files"
    if not path.endswith((".cc", ".h", ".cu", ".cuh")):
        return
    for number, line in enumerate(lines, 1):
        match = INCLUDE.match(line)
        if match:
            for problem in check_include(path, match[1] == '"', match[2], files):
                yield f"{path}:{number}: {problem}"


def indentation(line):
    return len(line) - len(line.lstrip())


def definitions(lines):
    """Yields (first, end, head) of every function and table: lines[first:end], and the text before its brace.

    Relies on the layout of clang-format: the brace ends the head's last line, and the closing brace is the first one as
    far left as the head's first line.
    """
    code = [line.split("//")[0].rstrip() for line in lines]
    at = 0
    while at < len(lines):
        if not code[at].endswith("{"):
            at += 1
            continue
        first = at
        while first > 0 and not re.search(r"(^|[;{}:])$|^#", code[first - 1]):
            first -= 1
        head = " ".join(line.strip() for line in code[first:at + 1]).replace("( ", "(")
        at += 1
        if SCOPE.match(head):
            continue
        while at < len(lines) and not (code[at].lstrip().startswith("}") and
                                       indentation(code[at]) <= indentation(code[first])):
            at += 1
        yield first, at + 1, head


def check_functions(path, text):
    """A function has few lines, from its head to its closing brace. A table may be longer."""
    if not path.endswith((".cc", ".h", ".cu", ".cuh")):
        return
    for first, end, head in definitions(text.splitlines()):
        if end - first > MAX_FUNCTION_LINES and not head.endswith("= {"):
            yield f"{path}:{first + 1}: a function of {end - first} lines; at most {MAX_FUNCTION_LINES}: {head}"


def check_built(path, files):
    """A source is named in a CMakeLists.txt of its folder or of one above."""
    folder = os.path.dirname(path)
    while True:
        name = os.path.relpath(path, folder) if folder else path
        cmake = re.sub(r"#.*", "", files.get(os.path.join(folder, "CMakeLists.txt"), ""))
        if re.search(r"(^|[\s(/])" + re.escape(name) + r"($|[\s)])", cmake):
            return
        if not folder:
            break
        folder = os.path.dirname(folder)
    yield f"{path}: no CMakeLists.txt names it"


def check_inner_functions(path, text):
    """A function inside a function of a test in Python is used: one that does not run checks nothing."""
    if not (path.startswith("tests/") and path.endswith(".py")):
        return
    functions = (ast.FunctionDef, ast.AsyncFunctionDef)
    for outer in ast.walk(ast.parse(text)):
        if not isinstance(outer, functions):
            continue
        defined = [node for node in statements(outer) if isinstance(node, functions) and not node.decorator_list]
        for inner in defined:
            own = set(ast.walk(inner))
            if not any(isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load) and node.id == inner.name
                       for node in ast.walk(outer) if node not in own):
                yield f"{path}:{inner.lineno}: {outer.name} does not use its function {inner.name}"


def statements(function):
    """Yields the statements of a function, also those in its blocks, but not those in its functions and classes."""
    queue = list(function.body)
    while queue:
        node = queue.pop(0)
        yield node
        if not isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
            queue += [child for child in ast.iter_child_nodes(node) if isinstance(child, (ast.stmt, ast.ExceptHandler))]


def circles(edges):
    """The groups of nodes that reach each other, each sorted. `edges`: node -> set of nodes."""
    reach = {}
    for start in edges:
        seen, queue = set(), [start]
        while queue:
            for target in edges.get(queue.pop(), ()):
                if target not in seen:
                    seen.add(target)
                    queue.append(target)
        reach[start] = seen
    return sorted({tuple(sorted(b for b in reach[a] if a in reach.get(b, ()))) for a in edges
                   if a in reach[a]})


def check_circles(files):
    """No two files (a header and its source as one), and no two folders, include each other in a circle."""
    rooms, folders = {}, {}
    for path, text in files.items():
        if path.startswith("tests/") or not path.endswith((".cc", ".h", ".cu", ".cuh")):
            continue
        room = os.path.splitext(path)[0]
        for line in text.splitlines():
            match = INCLUDE.match(line)
            if not match or match[2] not in files:
                continue
            target = os.path.splitext(match[2])[0]
            if target != room:
                rooms.setdefault(room, set()).add(target)
            here, there = os.path.dirname(path), os.path.dirname(match[2])
            if here != there:
                folders.setdefault(here, set()).add(there)
    for circle in circles(rooms):
        yield f"{', '.join(circle)}: these files include each other"
    for circle in circles(folders):
        yield f"{', '.join(circle)}: these folders include each other"


def check_names(files):
    """A header's name says what it holds: no two folders of the product have headers of one name."""
    folders = collections.defaultdict(list)
    for path in files:
        if path.endswith((".h", ".cuh")) and not path.startswith("tests/"):
            folders[os.path.basename(path)].append(path)
    for name, paths in sorted(folders.items()):
        if len(paths) > 1:
            yield f"{', '.join(sorted(paths))}: {name} names two things"


def check_words(path, text):
    """Comments, messages and documents are plain English."""
    for number, problem in words.check_file(path, text):
        yield f"{path}:{number}: {problem}; see tests/style/words.py"


def check_messages(path, text):
    """Messages that reach programs name neither flags nor agmmctl's verbs."""
    if path.startswith(("tests/", *COMMAND_LINES)) or not path.endswith((".cc", ".h")):
        return
    for number, line in enumerate(text.splitlines(), 1):
        for found in words.STRING.findall(line.split("//")[0]):
            if COMMAND_WORDS.search(found):
                yield f'{path}:{number}: "{found}" names a flag or agmmctl, and may reach a program'


def check_tree(files):
    """All that is wrong with `files`, a dict of path -> text."""
    problems = list(check_circles(files)) + list(check_names(files))
    for path, text in sorted(files.items()):
        problems += check_file(path, text, files)
        problems += check_functions(path, text)
        problems += check_inner_functions(path, text)
        problems += check_words(path, text)
        problems += check_messages(path, text)
        if path.endswith((".cc", ".cu")):
            problems += check_built(path, files)
    return problems


def read_tree(root):
    files = {}
    for top in FOLDERS:
        for folder, subfolders, names in os.walk(os.path.join(root, top)):
            subfolders[:] = [name for name in subfolders if not name.startswith((".", "__"))]
            for name in names:
                path = os.path.join(folder, name)
                if name.endswith((".cc", ".h", ".cu", ".cuh", ".proto", ".py", ".sh", ".txt")):
                    with open(path, encoding="utf-8") as file:
                        files[os.path.relpath(path, root)] = file.read()
    with open(os.path.join(root, "CMakeLists.txt"), encoding="utf-8") as file:
        files["CMakeLists.txt"] = file.read()
    return files


def read_documents(root):
    """All documents in Markdown, a dict of path -> text."""
    documents = {}
    for folder, subfolders, names in os.walk(root):
        if folder == root:
            subfolders[:] = [*FOLDERS, "docs"]
        for name in names:
            if name.endswith(".md"):
                path = os.path.join(folder, name)
                with open(path, encoding="utf-8") as file:
                    documents[os.path.relpath(path, root)] = file.read()
    return documents


class SelfTest(unittest.TestCase):
    """Each rule refuses what it is for and lets the rest pass."""

    def problems(self, path, line, header="kernels/base/units.h"):
        return check_tree({path: line + "\n", header: "", "CMakeLists.txt": path})

    def refused(self, path, line, what):
        found = self.problems(path, line)
        self.assertEqual(len(found), 1, (path, line, found))
        self.assertIn(what, found[0])

    def accepted(self, path, line):
        self.assertEqual(self.problems(path, line), [])

    def test_arrows_point_inward(self):
        for path, included in [
                ("kernels/base/a.cc", "kernels/schedule/problem.h"),
                ("kernels/schedule/a.cc", "kernels/device/device.h"),
                ("kernels/device/a.cc", "kernels/cpu/cpu_device.h"),
                ("kernels/cpu/a.cc", "kernels/cuda/device.h"),
                ("kernels/cpu/a.cc", "agmm/v1/job.pb.h"),
                ("kernels/cpu/a.cc", "daemon/sequencer/queue.h"),
                ("daemon/sequencer/a.cc", "client/files/npy.h"),
                ("client/connect/a.cc", "daemon/sequencer/queue.h"),
                ("client/ctl/a.cc", "daemon/sequencer/queue.h"),
                ("client/connect/a.cc", "kernels/schedule/plan.h"),
                ("daemon/sequencer/a.cc", "daemon/node/runner.h"),
                ("daemon/node/a.cc", "daemon/sequencer/catalog.h"),
                ("daemon/link/a.cc", "daemon/node/runner.h"),
                ("daemon/sequencer/a.cc", "daemon/rpc/server.h"),
                ("daemon/node/a.cc", "daemon/daemon.h"),
                ("client/connect/a.cc", "client/ctl/table.h"),
                ("client/connect/a.cc", "client/files/npy.h"),
                ("client/library/a.cc", "client/ctl/json.h"),
                ("client/ctl/a.cc", "kernels/device/device.h"),
                ("client/examples/a.cc", "kernels/base/units.h"),
                ("proto/convert/a.cc", "kernels/device/device.h")]:
            self.refused(path, f'#include "{included}"', "may not include")
        for path, included in [
                ("kernels/cpu/a.cc", "kernels/base/units.h"),
                ("kernels/schedule/a.cc", "kernels/schedule/problem.h"),
                ("daemon/sequencer/a.cc", "kernels/base/loop.h"),
                ("daemon/daemon.cc", "kernels/cpu/cpu_device.h"),
                ("daemon/daemon.cc", "daemon/node/runner.h"),
                ("proto/convert/a.cc", "agmm/v1/job.pb.h"),
                ("client/connect/a.cc", "proto/convert/rpc_status.h"),
                ("client/ctl/a.cc", "kernels/schedule/plan.h"),
                ("client/library/a.cc", "client/files/npy.h"),
                ("tests/e2e/a.cc", "daemon/sequencer/queue.h"),
                ("tests/e2e/a.cc", "client/files/npy.h")]:
            self.accepted(path, f'#include "{included}"')

    def test_files_and_folders_do_not_include_each_other(self):
        def found(files):
            return list(check_circles({f"kernels/{name}": text for name, text in files.items()}))

        def include(path):
            return f'#include "kernels/{path}"\n'
        self.assertEqual(found({"base/a.h": include("base/b.h"), "base/a.cc": include("base/a.h"),
                                      "base/b.h": ""}), [])
        files = {"base/a.h": include("base/b.h"), "base/b.h": "", "base/b.cc": include("base/a.h")}
        self.assertEqual(found(files),
                         ["kernels/base/a, kernels/base/b: these files include each other"])
        files = {"cpu/a.h": include("device/b.h"), "device/b.h": "", "device/c.h": include("cpu/d.h"), "cpu/d.h": ""}
        self.assertEqual(found(files), ["kernels/cpu, kernels/device: these folders include each other"])

    def test_a_header_has_a_name_of_its_own(self):
        names = lambda *paths: list(check_names(dict.fromkeys(paths, "")))
        self.assertEqual(names("client/status.cc", "daemon/status.h", "tests/status.h"), [])
        self.assertEqual(names("client/status.h", "daemon/status.h"),
                         ["client/status.h, daemon/status.h: status.h names two things"])

    def test_words_are_plain(self):
        for path in ("kernels/base/a.cc", "tests/base/a.cc", "proto/agmm/v1/a.proto"):
            for line in ("// What was there.", "int x;  // Nobody waits for it.", 'Fail("it is gone now");',
                         "// It begins anew.", 'Fail("they are none");', "// Those that wait.",
                         "// Whether it waits.", "int x;  // what they have in hand"):
                self.refused(path, line, "words.py")
            for line in ("// Returns the number of waiters, because it is needed.", 'Key("gone");',
                         "// It is no longer used.", "// There is no waiter.", "int what;"):
                self.accepted(path, line)
        self.refused("tests/run.sh", "# What it runs.", "words.py")
        self.accepted("tests/run.sh", "echo so many")

    def test_words_of_documents_are_plain(self):
        found = lambda *lines: [number for number, _ in words.check_document("\n".join(lines))]
        self.assertEqual(found("IDs begin anew.", "IDs start again.", "It has `gone`."), [1])
        self.assertEqual(found("```", "begin anew", "```", "begin anew"), [4])
        self.assertEqual(found("| as written | as it should be |", "| begin anew | start again |", "", "begin anew"), [4])

    def test_messages_to_programs_name_no_flags(self):
        for line in ('Fail("see `agmmctl status`");', 'Fail("give (--endpoint)");'):
            self.refused("client/connect/a.cc", line, "may reach a program")
            self.accepted("client/ctl/a.cc", line)
        for line in ("--count;  // agmmctl status", 'Fail("a -- b");'):
            self.accepted("client/connect/a.cc", line)

    def test_libraries_stay_where_they_belong(self):
        for path, line in [
                ("kernels/cpu/a.cc", "#include <cuda_runtime.h>"),
                ("daemon/sequencer/a.cc", "#include <cuda.h>"),
                ("daemon/sequencer/a.cc", "#include <ucp/api/ucp.h>"),
                ("kernels/cpu/a.cc", "# include <ucs/type/status.h>"),
                ("daemon/sequencer/a.cc", "#include <grpcpp/grpcpp.h>"),
                ("daemon/node/a.h", '#include "grpcpp/grpcpp.h"'),
                ("kernels/base/a.cc", "#include <grpc/status.h>"),
                ("daemon/sequencer/a.cc", "#include <dnnl.hpp>")]:
            self.refused(path, line, "alone")
        self.refused("daemon/sequencer/a.cc", '#include "agmm/v1/job.grpc.pb.h"', "alone")
        self.refused("client/agmm.h", "#include <absl/status/status.h>", "standard library only")
        self.accepted("client/agmm.h", "#include <future>")
        for path, line in [
                ("kernels/cuda/a.cc", "#include <cuda_runtime.h>"),
                ("daemon/transport/a.cc", "#include <ucp/api/ucp.h>"),
                ("daemon/rpc/a.cc", "#include <grpcpp/grpcpp.h>"),
                ("daemon/link/a.cc", "#include <grpcpp/grpcpp.h>"),
                ("daemon/main.cc", "#include <grpcpp/grpcpp.h>"),
                ("client/connect/a.cc", '#include "agmm/v1/job.grpc.pb.h"'),
                ("tests/daemon/a.cc", "#include <grpcpp/grpcpp.h>"),
                ("kernels/cpu/a.cc", "#include <dnnl.hpp>")]:
            self.accepted(path, line)

    def test_the_schedule_is_pure(self):
        for included in ("thread", "mutex", "fstream", "unistd.h", "sys/stat.h",
                         "absl/synchronization/mutex.h", "absl/time/clock.h", "spdlog/spdlog.h"):
            self.refused("kernels/schedule/a.cc", f"#include <{included}>", "is pure")
        for included in ("vector", "unordered_map", "absl/strings/str_cat.h"):
            self.accepted("kernels/schedule/a.cc", f"#include <{included}>")

    def test_includes_are_rooted_at_the_repository(self):
        header = "daemon/sequencer/b.h"
        found = self.problems("daemon/sequencer/a.cc", '#include "b.h"', header)
        self.assertEqual(len(found), 1)
        self.assertIn('write "daemon/sequencer/b.h"', found[0])
        self.assertEqual(self.problems("daemon/sequencer/a.cc", f'#include "{header}"', header), [])

    def test_tests_are_included_by_tests_alone(self):
        self.refused("daemon/sequencer/a.cc", '#include "tests/golden/golden.h"', "only tests")

    def test_a_file_past_the_limit_is_refused(self):
        self.refused("daemon/sequencer/a.h", "\n" * MAX_LINES, "asking to be two")
        self.accepted("daemon/sequencer/a.h", "\n" * 399)
        self.accepted("tests/golden/plans/a.txt", "\n" * 5000)

    def test_a_long_function_is_refused(self):
        def lengths(*lines):
            """The lengths of the functions that are too long. "..." stands for as many lines as one may have."""
            text = "\n".join(lines).replace("...", "\n".join(["  f();"] * MAX_FUNCTION_LINES))
            return [int(re.search(r"of (\d+) lines", problem)[1]) for problem in check_functions("daemon/a.cc", text)]
        for head in (["int F() {"], ["TEST_F(Suite, IsAFact) {"], ["template <typename T>", "T F(int a,", "    int b) {"],
                     ["A::A()", "    : a_(1),", "      b_(2) {  // both"]):
            before = ["namespace a {", "class B {", " public:", "};", "// Of a thing."]
            self.assertEqual(lengths(*before, *head, "...", "}", "}"), [len(head) + MAX_FUNCTION_LINES + 1], head)
        self.assertEqual(lengths("class A", "    : public B {", "  int F() {", "...", "  }", "};"), [MAX_FUNCTION_LINES + 2])
        self.assertEqual(lengths("int F() {", "  if (a) {", "  }", "...", "}"), [MAX_FUNCTION_LINES + 4])
        self.assertEqual(lengths("int F() {", *["  f();"] * (MAX_FUNCTION_LINES - 2), "}"), [])
        self.assertEqual(lengths("class A {", *["  int F() {", "    return 1;", "  }"] * MAX_FUNCTION_LINES, "};"), [])
        self.assertEqual(lengths("const Case kCases[] = {", "...", "};"), [])

    def test_an_inner_function_of_a_test_is_used(self):
        def found(*lines, path="tests/python/a_test.py"):
            text = "\n".join(["def test():", *(f"    {line}" for line in lines)])
            return [re.search(r"use its function (\w+)", problem)[1] for problem in check_inner_functions(path, text)]
        self.assertEqual(found("async def body(): pass"), ["body"])
        self.assertEqual(found("def body(): body()"), ["body"])
        self.assertEqual(found("if True:", "    def body(): pass", "body = 1"), ["body"])
        self.assertEqual(found("def outer():", "    def inner(): pass", "outer()"), ["inner"])
        self.assertEqual(found("def body(): pass", path="tests/a.cc"), [])
        for lines in (["def body(): pass", "run(body)"], ["def one(): two()", "def two(): pass", "one()"],
                      ["class Array:", "    def __len__(self): pass"], ["@atexit.register", "def end(): pass"]):
            self.assertEqual(found(*lines), [], lines)

    def test_every_source_is_built(self):
        def found(cmake, at="daemon/sequencer/CMakeLists.txt", path="daemon/sequencer/a.cc"):
            return check_tree({path: "", at: cmake})
        self.assertEqual(found("add_library(x STATIC a.cc)"), [])
        self.assertEqual(found("add_library(x\n  sequencer/a.cc\n)", "daemon/CMakeLists.txt"), [])
        for cmake in ("", "add_library(x aa.cc)", "add_library(x a.ccc)", "# a.cc"):
            self.assertEqual(found(cmake), ["daemon/sequencer/a.cc: no CMakeLists.txt names it"], cmake)
        self.assertEqual(len(found("add_library(x a.cc)", "daemon/link/CMakeLists.txt")), 1)


class TreeTest(unittest.TestCase):
    def test_the_repository_keeps_the_rules(self):
        files = read_tree(ROOT)
        self.assertGreater(len(files), 50, "the repository was not found at " + ROOT)
        problems = check_tree(files)
        self.assertEqual(problems, [], "\n" + "\n".join(problems))

    def test_the_documents_are_plain(self):
        documents = read_documents(ROOT)
        self.assertIn("docs/concepts.md", documents)
        problems = [problem for path in sorted(documents) for problem in check_words(path, documents[path])]
        self.assertEqual(problems, [], "\n" + "\n".join(problems))


if __name__ == "__main__":
    unittest.main(argv=sys.argv)
