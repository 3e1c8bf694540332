"""Compares what the documents say about the tree with the tree. Needs no build.

* A file or a folder that a document names exists, and so does a class, a function or a test that the documents for
  contributors name.
* The table of log lines in docs/operations.md has every warning and error of the daemon.
* Messages in the tables of errors, symptoms and log lines are those of the sources.
* The table of errors there has every reason of an error.
* The tables of metrics there have every metric that the daemon registers under a literal name.
"""

import pathlib
import re
import unittest

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
FOLDERS = ("client", "daemon", "deploy", "docs", "kernels", "proto", "tests")
FILES = [path for folder in FOLDERS for path in (ROOT / folder).rglob("*")]
DOCUMENTS = [ROOT / "README.md", ROOT / "CONTRIBUTING.md"] + [path for path in FILES if path.suffix == ".md"]
# For these, a word in backticks that begins with a capital is a name of the code or of a test.
ABOUT_CODE = [ROOT / "CONTRIBUTING.md", ROOT / "docs/design.md", ROOT / "docs/tour.md"]
ABOUT_CODE += [path for path in DOCUMENTS if path.name == "NOTES.md"]
OPERATIONS = ROOT / "docs/operations.md"

# A file by its name alone is one of these; other names, such as agmm.txtpb, are the reader's own.
NAMED_ALONE = re.compile(r"[\w-]+\.(h|cc|cu|cuh|proto|py|sh|supp|cmake)")
OF_MPI = {"Irecv"}
OF_GRPC = {"hpack_parser.cc", "parsing.cc"}


def without_blocks(text):
    return re.sub(r"^```.*?^```$", "", text, flags=re.MULTILINE | re.DOTALL)


def alternatives(name):
    """Expands lease.{h,cc} to lease.h and lease.cc."""
    match = re.search(r"\{([^}]*)\}", name)
    if match is None:
        return [name]
    before, after = name[:match.start()], name[match.end():]
    return [each for part in match[1].split(",") for each in alternatives(before + part + after)]


def missing_files(text, folder):
    """Yields the files in backticks that are not in the tree. `folder`: the document's own."""
    names = {path.name for path in FILES}
    for code in re.findall(r"`([^`\n]+)`", without_blocks(text)):
        if not re.fullmatch(r"[\w./*{},+-]+", code):
            continue
        for name in alternatives(code):
            if name.split("/")[0] in FOLDERS and "/" in name:
                # `client/connect/connection` stands for a header and its source.
                if not any(ROOT.glob(name.rstrip("/"))) and not any(ROOT.glob(name + ".*")):
                    yield name
            elif NAMED_ALONE.fullmatch(name) and name not in names | OF_GRPC and not (folder / name).exists():
                yield name


STRING = r'"(?:[^"\\]|\\.)*"'


def strings(pattern, source):
    """The string literals at each match of `pattern`, joined, with ... in place of what varies."""
    for match in re.finditer(pattern + rf"((?:{STRING}\s*)+)", source):
        text = "".join(each[1:-1] for each in re.findall(STRING, match[1]))
        text = re.sub(r"\{[^}]*\}|%[.\d]*[a-z]", "...", text)
        yield text.replace('\\"', '"')


def sources(*folders):
    under = tuple(str(ROOT / folder) for folder in folders)
    return [path.read_text() for path in FILES if path.suffix in (".cc", ".h", ".proto") and str(path).startswith(under)]


def cells_of(title):
    """The first cell of each row of the table under the heading `title` of docs/operations.md."""
    section = re.search(rf"^#+ {re.escape(title)}\n(.*?)(?=^#|\Z)", OPERATIONS.read_text(), re.MULTILINE | re.DOTALL)[1]
    return re.findall(r"^\| (.*?) \|", section, re.MULTILINE)


def codes_of(title):
    return [code for cell in cells_of(title) for code in re.findall(r"`([^`]+)`", cell)]


class Tree(unittest.TestCase):
    def test_files_that_documents_name_exist(self):
        for document in DOCUMENTS:
            self.assertEqual(list(missing_files(document.read_text(), document.parent)), [], document.relative_to(ROOT))

    def test_functions_that_documents_name_exist(self):
        known = set(re.findall(r"\w+", "\n".join(sources("client/", "daemon/", "kernels/", "proto/", "tests/"))))
        for document in ABOUT_CODE:
            names = re.findall(r"`([A-Z]\w*[a-z]\w*(?:(?:::|\.[A-Z])\w+)*)`", document.read_text())
            for name in names:
                unknown = set(re.findall(r"\w+", name)) - known - OF_MPI
                self.assertEqual(unknown, set(), f"{document.relative_to(ROOT)}: {name}")

    def test_functions_are_in_the_files_that_documents_give(self):
        """As in `launches.cc`: `Launches::Launch`; `history.h`: `History`."""
        count = 0
        for document in ABOUT_CODE:
            for name, function in re.findall(r"`([\w/]+\.(?:cc|h))`: `([\w:]+)`", document.read_text()):
                count += 1
                files = [path for path in FILES if path.as_posix().endswith("/" + name)]
                found = any(re.search(rf"\b{function.split('::')[-1]}\b", path.read_text()) for path in files)
                self.assertTrue(found, f"{document.relative_to(ROOT)}: {name}: {function}")
        self.assertGreater(count, 20)

    def test_a_missing_file_is_found(self):
        text = "`daemon/none.cc`, `gone.h`, `daemon/daemon.{h,xx}`, `daemon/daemon.cc`, `daemon.h`, `docs/*.md`"
        self.assertEqual(list(missing_files(text, ROOT)), ["daemon/none.cc", "gone.h", "daemon/daemon.xx"])

    def test_the_table_of_log_lines_is_complete(self):
        rows = codes_of("Log lines that ask for action")
        call = r"spdlog::(?:warn|error)\(\s*"
        logged = [text for source in sources("daemon/", "kernels/") for text in strings(call, source)]
        self.assertGreater(len(logged), 20)
        patterns = [re.compile(".*".join(map(re.escape, row.split("...")))) for row in rows]
        for text in logged:
            if text.strip(".:; "):  # a line that is a message made elsewhere has no text of its own
                found = any(pattern.search(text) for pattern in patterns)
                self.assertTrue(found, f"docs/operations.md lacks the log line: {text}")

    def test_messages_of_the_tables_exist(self):
        said = "\n".join(text for source in sources("client/", "daemon/", "kernels/") for text in strings("", source))
        for title in ("Troubleshooting", "Errors of jobs and calls", "Log lines that ask for action"):
            messages = [code for code in codes_of(title) if " " in code]
            self.assertGreater(len(messages), 4)
            for message in messages:
                for part in filter(None, (part.strip() for part in message.split("..."))):
                    self.assertIn(part, said, f"{title}: {message}")

    def test_the_tables_of_metrics_are_complete(self):
        rows = codes_of("Metrics")
        metrics = [text for source in sources("daemon/") for text in strings(r"(?:counter|SetGauge)\(\s*", source)]
        metrics += [text for source in sources("daemon/daemon.cc") for text in strings(r"add\(\s*", source)]
        self.assertGreater(len(metrics), 20)
        for metric in metrics:
            self.assertIn(metric, rows, "docs/operations.md lacks the metric")

    def test_every_reason_of_an_error_is_explained(self):
        rows = codes_of("Errors of jobs and calls")
        reasons = re.findall(r'kReason\w+\[\] = "(\w+)"', (ROOT / "kernels/base/reason.h").read_text())
        self.assertGreater(len(reasons), 3)
        for reason in reasons:
            self.assertIn(reason, rows)


if __name__ == "__main__":
    unittest.main()
