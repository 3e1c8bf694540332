"""Plain English in comments, messages and documents: the openings and phrases that this repository avoids.

    words.py FILE...    prints every line that breaks a rule

A comment is a noun phrase for a thing ("Grace period for ..."), a third-person verb for a function
("Returns ..."), or a reason ("Because ..."). Its subject is a word of docs/concepts.md.

A list of words cannot check a sentence. CONTRIBUTING.md shows what one looks like.
"""

import re
import sys

# At the start of a comment, relative clauses without a noun, and sentences without a subject.
OPENINGS = re.compile(r"(What|Who|Whoever|Whose|Whether|Where|Which|How|Why|Likewise|Those|That|Nobody|Somebody|"
                      r"Nothing|Of|So)\b(?! that)")

# Anywhere in a comment, in a sentence of a document, or in a string of two words or more.
PHRASES = re.compile(
    r"\b(anew|spoilt|so many|nobody|somebody|whoever|what lies|to be had|lets? go(es)? of|in hand|for ever|but for|"
    r"shall|mends?|mended|hears?|heard of|in mid-\w+|in good order|(is|are|was|were) to be|gives? back|takes? back|"
    r"tells? apart|looks? after|as long as (it|they) lives?|of NVIDIA(?!.s)|"
    r"(is|are|was|were) (gone|told|none|no)|has gone|have gone|who is|those who|those that|"
    r"the one before it|at most so|as it (lay|lies|stands)|looked for)\b", re.IGNORECASE)
# Idiomatic: "there is no", "is no longer", "is no more than".
ALLOWED = re.compile(r"\bthere (is|are|was|were) (no|none)\b|"
                     r"\b(is|are|was|were) no (longer|more|less|fewer|later|earlier)\b", re.IGNORECASE)

STRING = re.compile(r'"((?:[^"\\]|\\.)*)"')
COMMENT = {"//": re.compile(r"(?:^|\s)//+\s?(.*)$"), "#": re.compile(r"(?:^|\s)#+(?!!)\s(.*)$")}
CODE = re.compile(r"`[^`]*`")
# A table of pairs shows sentences as they should not be.
PAIRS = "| as written |"


def mark_of(path):
    """What begins a comment in this file; None for a file that has none."""
    if path.endswith((".cc", ".h", ".cu", ".cuh", ".proto")):
        return "//"
    return "#" if path.endswith((".py", ".sh", ".cmake", "CMakeLists.txt")) else None


def phrase_in(text):
    """Yields the phrase that breaks a rule, quoted."""
    match = PHRASES.search(ALLOWED.sub("", text))
    if match:
        yield f'"{match[0]}"'


def check_text(text, mark="//"):
    """Yields (line number, what is wrong) for a source file."""
    in_comment = False
    for number, line in enumerate(text.splitlines(), 1):
        if line.lstrip().startswith("#include"):
            continue
        bare = STRING.sub('""', line)
        comment = COMMENT[mark].search(bare)
        whole = line.lstrip().startswith(mark)
        if comment and not in_comment and OPENINGS.match(comment[1]):
            yield number, f'a comment begins with "{OPENINGS.match(comment[1])[0]}"'
            in_comment = whole
            continue
        # A comment behind code stands alone; whole lines of comments continue each other.
        in_comment = bool(comment) and whole
        prose = [comment[1]] if comment else []
        if mark == "//":
            prose += [found for found in STRING.findall(line.split("//")[0]) if " " in found.strip()]
        for piece in prose:
            for problem in phrase_in(piece):
                yield number, problem


def check_document(text):
    """Yields (line number, what is wrong) for the sentences of a document in Markdown."""
    fenced = pairs = False
    for number, line in enumerate(text.splitlines(), 1):
        fenced ^= line.startswith("```")
        pairs = line.startswith(PAIRS) or pairs and line.startswith("|")
        if not fenced and not pairs:
            for problem in phrase_in(CODE.sub("`", line)):
                yield number, problem


def check_file(path, text):
    """Yields (line number, what is wrong) for any file."""
    if path.endswith(".md"):
        yield from check_document(text)
    elif mark_of(path):
        yield from check_text(text, mark_of(path))


def main():
    found = 0
    for path in sys.argv[1:]:
        with open(path, encoding="utf-8") as file:
            for number, problem in check_file(path, file.read()):
                print(f"{path}:{number}: {problem}")
                found += 1
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
