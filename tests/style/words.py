"""Plain English in comments and in messages: the openings and phrases that this repository avoids.

    words.py FILE...    prints every line that breaks a rule

A comment is a noun phrase for a thing ("Grace period for ..."), a third-person verb for a function
("Returns ..."), or a reason ("Because ..."). Its subject is a word of docs/concepts.md.
"""

import re
import sys

# At the start of a comment, relative clauses without a noun, and sentences without a subject.
OPENINGS = re.compile(r"(What|Who|Whoever|Whose|Those|That|Nobody|Somebody|Nothing|Of|So)\b(?! that)")

# Anywhere in a comment or in a string of two words or more.
PHRASES = re.compile(
    r"\b(anew|spoilt|so many|nobody|somebody|whoever|what lies|to be had|lets? go(es)? of|"
    r"(is|are|was|were) (gone|told|none|no)|has gone|have gone|who is|those who|those that|"
    r"the one before it|at most so|as it (lay|lies|stands)|looked for)\b", re.IGNORECASE)
# "is no longer" and "is no more than" are idiomatic.
ALLOWED = re.compile(r"\b(is|are|was|were) no (longer|more|less|fewer|later|earlier)\b", re.IGNORECASE)

COMMENT = re.compile(r"(?:^|\s)//+\s?(.*)$")
STRING = re.compile(r'"((?:[^"\\]|\\.)*)"')


def check_text(text):
    """Yields (line number, what is wrong)."""
    in_comment = False
    for number, line in enumerate(text.splitlines(), 1):
        if line.lstrip().startswith("#include"):
            continue
        bare = STRING.sub('""', line)
        comment = COMMENT.search(bare)
        if comment and not in_comment and OPENINGS.match(comment[1]):
            yield number, f'a comment begins with "{OPENINGS.match(comment[1])[0]}"'
            in_comment = line.lstrip().startswith("//")
            continue
        # A comment behind code stands alone; whole lines of comments continue each other.
        in_comment = bool(comment) and line.lstrip().startswith("//")
        prose = [comment[1]] if comment else []
        prose += [found for found in STRING.findall(line.split("//")[0]) if " " in found.strip()]
        for piece in prose:
            match = PHRASES.search(ALLOWED.sub("", piece))
            if match:
                yield number, f'"{match[0]}"'


def main():
    found = 0
    for path in sys.argv[1:]:
        with open(path, encoding="utf-8") as file:
            for number, problem in check_text(file.read()):
                print(f"{path}:{number}: {problem}")
                found += 1
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
